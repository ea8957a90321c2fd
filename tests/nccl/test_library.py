"""Layer 3: the real libnccl, through CuPy, on a machine that need not have a GPU."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from ncclkv.comm.nccl import bounded
from ncclkv.comm.nccl.binding import DTYPES, OPS, UNIQUE_ID_BYTES, version_text
from ncclkv.comm.nccl.cupy_binding import CupyBinding
from ncclkv.comm.nccl.discovery import OLDEST_NCCL
from ncclkv.errors import CommAborted, CommTimeout, LaunchError, RankLost

cupy = pytest.importorskip("cupy", reason="layer 3 needs CuPy: pip install 'ncclkv[cuda12]'")
nccl: Any = pytest.importorskip("cupy.cuda.nccl", reason="layer 3 needs CuPy with NCCL")
if not nccl.available:
    pytest.skip("layer 3 needs libnccl: pip install nvidia-nccl-cu12", allow_module_level=True)

NO_GPU = pytest.mark.skipif(cupy.cuda.is_available(), reason="there is a GPU here")

SYMBOLS = [
    "ncclAllGather",
    "ncclAllReduce",
    "ncclBroadcast",
    "ncclCommAbort",
    "ncclCommDestroy",
    "ncclCommGetAsyncError",
    "ncclCommInitRank",
    "ncclGetUniqueId",
    "ncclGetVersion",
    "ncclGroupEnd",
    "ncclGroupStart",
    "ncclRecv",
    "ncclReduce",
    "ncclReduceScatter",
    "ncclSend",
]

CALLS = [
    ("all_reduce", "allReduce", "ncclAllReduce", 6),
    ("reduce", "reduce", "ncclReduce", 7),
    ("broadcast", "broadcast", "ncclBroadcast", 6),
    ("reduce_scatter", "reduceScatter", "ncclReduceScatter", 6),
    ("all_gather", "allGather", "ncclAllGather", 5),
    ("send", "send", "ncclSend", 5),
    ("receive", "recv", "ncclRecv", 5),
]
"""The binding's name of a call, CuPy's, NCCL's, and how many numbers it takes."""


class FakeHandle:
    """A communicator of CuPy's in its looks: it notes calls, or raises what it was told to."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> None:
            if self.error is not None:
                raise self.error
            self.calls.append((name, *arguments))

        return call


@pytest.fixture(scope="module")
def binding() -> CupyBinding:
    return CupyBinding(timeout=10)


def test_version_is_new_enough(binding):
    assert binding.version() >= OLDEST_NCCL
    assert version_text(binding.version()).count(".") == 2


def test_the_library_has_every_function_that_is_called(binding):
    import ctypes

    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "libnccl.so" in line}
    assert len(paths) == 1, f"several copies of NCCL are loaded: {paths}"
    library = ctypes.CDLL(paths.pop())
    missing = [name for name in SYMBOLS if not hasattr(library, name)]
    assert not missing


def test_numbers_are_those_of_the_library():
    for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32"):
        assert DTYPES[name] == getattr(nccl, f"NCCL_{name.upper()}")
    assert DTYPES["float64"] == nccl.NCCL_FLOAT64
    assert DTYPES["bfloat16"] == nccl.NCCL_BFLOAT16
    assert {op: getattr(nccl, f"NCCL_{op.upper()}") for op in OPS} == OPS


def test_unique_ids_are_128_bytes_and_differ(binding):
    ids = {binding.unique_id() for _ in range(3)}
    assert len(ids) == 3
    assert all(type(each) is bytes and len(each) == UNIQUE_ID_BYTES for each in ids)


def test_groups_nest(binding):
    for _ in range(2):
        binding.group_start()
    for _ in range(2):
        binding.group_end()
    with pytest.raises(CommAborted, match="ncclGroupEnd failed: NCCL_ERROR_INVALID_USAGE"):
        binding.group_end()


def nobody() -> None:
    """Finds nobody who has left."""


def test_a_creation_that_waits_for_a_rank_that_has_left_ends_at_once(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(nccl, "NcclCommunicator", lambda *_: release.wait())
    looks: list[int] = []

    def look() -> None:
        looks.append(threading.get_ident())
        if len(looks) == 3:
            raise RankLost("rank 1 left")

    begin = time.monotonic()
    with pytest.raises(RankLost, match="rank 1 left"):
        CupyBinding(timeout=60).create(2, bytes(128), 0, look)
    assert time.monotonic() - begin < 5.0
    assert set(looks) == {threading.get_ident()}
    release.set()


@NO_GPU
def test_without_a_gpu_creation_fails_in_words_and_at_once(binding):
    begin = time.monotonic()
    with pytest.raises(LaunchError) as caught:
        binding.create(2, binding.unique_id(), 0, nobody)
    assert time.monotonic() - begin < 1.0
    text = str(caught.value)
    assert f"NCCL {version_text(binding.version())}: ncclCommInitRank failed" in text
    assert "NCCL_ERROR_UNHANDLED_CUDA_ERROR" in text
    assert "NCCL_DEBUG=WARN" in text


@NO_GPU
def test_without_a_gpu_the_device_is_named_first():
    with pytest.raises(LaunchError, match="cudaErrorInsufficientDriver|cudaErrorNoDevice"):
        CupyBinding(device=0).create(1, b"\0" * UNIQUE_ID_BYTES, 0, nobody)


def test_a_rank_joins_on_its_own_device(monkeypatch):
    """In a thread, whose current device is the first one until another is chosen."""
    used: dict[int, int] = {}

    def device(number: int) -> Any:
        return SimpleNamespace(use=lambda: used.update({threading.get_ident(): number}))

    binding = CupyBinding(device=3, timeout=10)
    monkeypatch.setattr(binding, "_cuda", SimpleNamespace(Device=device))
    monkeypatch.setattr(nccl, "NcclCommunicator", lambda *_: used[threading.get_ident()])
    assert binding.create(2, bytes(UNIQUE_ID_BYTES), 1, nobody) == 3


@pytest.mark.parametrize(("name", "cupys", "_", "count"), CALLS)
def test_calls_pass_their_numbers_on_in_order(binding, name, cupys, _, count):
    handle = FakeHandle()
    getattr(binding, name)(handle, *range(count))
    assert handle.calls == [(cupys, *range(count))]


@pytest.mark.parametrize(("name", "_", "nccls", "count"), CALLS)
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (nccl.NcclError(4), "NCCL_ERROR_INVALID_ARGUMENT"),
        (KeyError(7), "ncclInProgress, which CuPy does not know"),
        (KeyError(99), "code 99, which CuPy does not know"),
    ],
)
def test_errors_are_ours_with_version_and_call(binding, name, _, nccls, count, error, words):
    with pytest.raises(CommAborted) as caught:
        getattr(binding, name)(FakeHandle(error), *range(count))
    assert type(caught.value) is CommAborted
    text = str(caught.value)
    assert f"NCCL {version_text(binding.version())}: {nccls} failed: " in text
    assert words in text


def test_cupy_still_has_no_name_for_code_7():
    # When this fails CuPy has learnt it, and the words for a KeyError are no longer needed.
    with pytest.raises(KeyError, match="7"):
        nccl.NcclError(7)


def test_asynchronous_errors_come_as_text(binding):
    assert binding.async_error(FakeHandle()) is None
    text = binding.async_error(FakeHandle(nccl.NcclError(2)))
    assert text is not None
    assert "NCCL_ERROR_SYSTEM_ERROR" in text
    text = binding.async_error(FakeHandle(KeyError(7)))
    assert text is not None
    assert "NCCL_COMM_BLOCKING" in text


def test_destroy_and_abort_are_called_once(binding):
    handle = FakeHandle()
    binding.destroy(handle)
    binding.abort(handle)
    assert handle.calls == [("destroy",), ("abort",)]


def test_what_hangs_is_left_behind(monkeypatch):
    monkeypatch.setattr(bounded, "ABORT_SECONDS", 0.1)
    release = threading.Event()

    class Stuck:
        destroy = abort = staticmethod(release.wait)

    binding = CupyBinding(timeout=0.1)
    for call, name in ((binding.destroy, "ncclCommDestroy"), (binding.abort, "ncclCommAbort")):
        begin = time.monotonic()
        with pytest.raises(CommTimeout, match=rf"{name} waited 0\.1 s for the other ranks"):
            call(Stuck())
        assert time.monotonic() - begin < 1.0
    release.set()


def test_at_the_end_of_a_python_without_new_threads_a_call_is_made_in_place(monkeypatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    handle = FakeHandle()
    CupyBinding(timeout=10).abort(handle)
    assert handle.calls == [("abort",)]
    with pytest.raises(CommAborted, match="ncclCommDestroy failed: NCCL_ERROR_INVALID_ARGUMENT"):
        CupyBinding(timeout=10).destroy(FakeHandle(nccl.NcclError(4)))


def test_ranks_connect_by_a_byte_each_way_in_one_group_of_one_thread(monkeypatch):
    handle = FakeHandle()
    threads: list[int] = []
    binding = CupyBinding(timeout=10)
    for name in ("groupStart", "groupEnd"):
        monkeypatch.setattr(nccl, name, lambda: threads.append(threading.get_ident()))
    binding.connect(handle, [2, 0], (100, 101), 7)
    byte = DTYPES["uint8"]
    assert handle.calls == [
        ("recv", 101, 1, byte, 2, 7),
        ("send", 100, 1, byte, 2, 7),
        ("recv", 102, 1, byte, 0, 7),
        ("send", 100, 1, byte, 0, 7),
    ]
    assert len(threads) == 2
    assert threads[0] == threads[1] != threading.get_ident(), "a group is of its thread"


def test_a_rank_that_does_not_connect_passes_the_deadline(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(nccl, "groupStart", lambda: None)
    monkeypatch.setattr(nccl, "groupEnd", release.wait)
    begin = time.monotonic()
    with pytest.raises(CommTimeout, match=r"ncclGroupEnd waited 0\.1 s for the other ranks"):
        CupyBinding(timeout=0.1).connect(FakeHandle(), [1], (100, 101), 7)
    assert time.monotonic() - begin < 1.0
    release.set()


MISSING = """
import sys
{spoil}
from ncclkv.comm.nccl.cupy_binding import CupyBinding
from ncclkv.errors import LaunchError
try:
    CupyBinding()
except LaunchError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        ("sys.modules['cupy'] = None", "CuPy cannot be imported"),
        ("sys.modules['cupy_backends.cuda.libs.nccl'] = None", "CuPy finds no NCCL library"),
    ],
)
def test_a_missing_library_is_said_in_words(spoil, words):
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", MISSING.format(spoil=spoil)],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert words in run.stdout
    assert "pip install 'ncclkv[cuda12]'" in run.stdout
    assert run.stderr == ""
