"""Layer 3: the real libnccl, through nccl4py, on a machine that need not have a GPU.

Communicators are made up: what NCCL says of them, and how often, is scripted.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from ncclkv.comm.nccl import bounded
from ncclkv.comm.nccl.binding import DTYPES, OPS, UNIQUE_ID_BYTES, version_text
from ncclkv.comm.nccl.cupy_binding import CupyBinding
from ncclkv.comm.nccl.discovery import OLDEST_NCCL
from ncclkv.comm.nccl.nccl4py_binding import SERIES, Nccl4pyBinding, installed
from ncclkv.errors import CommAborted, CommTimeout, LaunchError, RankLost

cupy = pytest.importorskip("cupy", reason="layer 3 needs CuPy: pip install 'ncclkv[cuda12]'")
nccl: Any = pytest.importorskip(
    "nccl.bindings.nccl", reason="these tests need nccl4py: pip install 'ncclkv[nccl4py]'"
)
if not installed():
    pytest.skip(f"these tests are for nccl4py {SERIES}", allow_module_level=True)

NO_GPU = pytest.mark.skipif(cupy.cuda.is_available(), reason="there is a GPU here")
LIMIT = 0.2
"""Seconds that a call may wait here."""

CALLS = [
    ("all_reduce", "ncclAllReduce", 6),
    ("reduce", "ncclReduce", 7),
    ("broadcast", "ncclBroadcast", 6),
    ("reduce_scatter", "ncclReduceScatter", 6),
    ("all_gather", "ncclAllGather", 5),
    ("send", "ncclSend", 5),
    ("receive", "ncclRecv", 5),
]
"""The binding's name of a call, NCCL's, and how many numbers it takes."""

IN_PROGRESS = int(nccl.Result.InProgress)
SYSTEM_ERROR = int(nccl.Result.SystemError)


def nobody() -> None:
    """Finds nobody who has left."""


class Scripted:
    """nccl4py's low layer, whose calls of communicators are noted and not made.

    Attributes
    ----------
    calls : list of tuple
        Names with arguments, without the looks.
    states : list of int
        What a communicator is found to be doing, look by look; the last stays.
    """

    def __init__(self, *states: int) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.states = list(states)
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith(("comm_", "group_", "all_", "reduce", "broadcast", "send", "recv")):
            return getattr(nccl, name)

        def call(*arguments: Any) -> str:
            self.calls.append((name, *arguments))
            return "the communicator"

        return call

    def comm_get_async_error(self, comm: Any) -> int:
        self.looks += 1
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


@pytest.fixture(scope="module")
def binding() -> Nccl4pyBinding:
    return Nccl4pyBinding(timeout=10)


@pytest.fixture
def scripted(request: pytest.FixtureRequest) -> tuple[Nccl4pyBinding, Scripted]:
    """A binding over a script."""
    made = Nccl4pyBinding(timeout=LIMIT)
    script = made._nccl = Scripted(*getattr(request, "param", (0,)))
    return made, script


def test_the_library_and_its_version_are_those_that_cupy_uses(binding):
    assert binding.version() >= OLDEST_NCCL
    assert binding.version() == CupyBinding().version()


def test_numbers_are_those_of_the_library():
    names = {name: getattr(nccl.DataType, name.capitalize()) for name in DTYPES if name[0] != "u"}
    names |= {name: getattr(nccl.DataType, "Ui" + name[2:]) for name in DTYPES if name[0] == "u"}
    assert {name: int(code) for name, code in names.items()} == DTYPES
    assert {op: int(getattr(nccl.RedOp, op.capitalize())) for op in OPS} == OPS


def test_unique_ids_are_128_bytes_and_differ(binding):
    ids = {binding.unique_id() for _ in range(3)}
    assert len(ids) == 3
    assert all(type(each) is bytes and len(each) == UNIQUE_ID_BYTES for each in ids)


def test_groups_nest(binding):
    for _ in range(2):
        binding.group_start()
    for _ in range(2):
        binding.group_end()
    with pytest.raises(CommAborted, match="ncclGroupEnd failed: InvalidUsage"):
        binding.group_end()


@NO_GPU
def test_without_a_gpu_creation_fails_in_nccls_words_and_at_once(binding):
    begin = time.monotonic()
    with pytest.raises(LaunchError) as caught:
        binding.create(2, binding.unique_id(), 0, nobody)
    assert time.monotonic() - begin < 1.0
    text = str(caught.value)
    assert f"NCCL {version_text(binding.version())}: ncclCommInitRankConfig failed" in text
    assert "UnhandledCudaError (1)" in text
    assert "NCCL's last message: Cuda failure 'CUDA driver version is insufficient" in text
    with pytest.raises(CommAborted, match="ncclGroupEnd failed"):
        binding.group_end()  # the failure has left no group open


@NO_GPU
def test_without_a_gpu_the_device_is_named_first():
    with pytest.raises(LaunchError, match="cudaErrorInsufficientDriver|cudaErrorNoDevice"):
        Nccl4pyBinding(device=0).create(1, b"\0" * UNIQUE_ID_BYTES, 0, nobody)


@pytest.mark.parametrize(("name", "_", "count"), CALLS)
def test_calls_pass_their_numbers_on_in_order(scripted, name, _, count):
    made, script = scripted
    getattr(made, name)("the communicator", *range(count))
    theirs = "recv" if name == "receive" else name
    assert script.calls == [(theirs, *range(count - 1), "the communicator", count - 1)]


@pytest.mark.parametrize("scripted", [(IN_PROGRESS, IN_PROGRESS, 0)], indirect=True)
@pytest.mark.parametrize(("name", "_", "count"), CALLS)
def test_a_call_returns_when_nccl_is_done_with_it(scripted, name, _, count):
    made, script = scripted
    getattr(made, name)("the communicator", *range(count))
    assert (script.looks, script.states) == (3, [0])


@pytest.mark.parametrize("scripted", [(IN_PROGRESS, SYSTEM_ERROR)], indirect=True)
@pytest.mark.parametrize(("name", "nccls", "count"), CALLS)
def test_what_goes_wrong_meanwhile_is_ours_with_version_and_call(scripted, name, nccls, count):
    made, _ = scripted
    with pytest.raises(CommAborted) as caught:
        getattr(made, name)("the communicator", *range(count))
    assert f"NCCL {version_text(made.version())}: {nccls} failed: SystemError" in str(caught.value)


def test_codes_that_nccl4py_does_not_know_are_errors_too(scripted):
    made, script = scripted
    script.states = [99]
    with pytest.raises(CommAborted, match="ncclAllReduce failed: 99 is not a valid Result"):
        made.all_reduce("the communicator", *range(6))
    assert "99 is not a valid Result" in made.async_error("the communicator")


def test_in_a_group_the_end_waits_for_all_of_it(scripted):
    made, script = scripted
    made.group_start()
    made.group_start()
    made.all_reduce("one", *range(6))
    made.all_gather("other", *range(5))
    made.group_end()
    assert script.looks == 0
    script.states = [IN_PROGRESS, 0]
    made.group_end()
    assert script.looks == 3
    made.all_reduce("one", *range(6))
    assert script.looks == 4


def test_a_call_that_nccl_does_not_end_has_a_deadline(scripted):
    made, script = scripted
    script.states = [IN_PROGRESS]
    with pytest.raises(CommTimeout, match=r"ncclAllReduce waited 0\.2 s for the other ranks"):
        made.all_reduce("the communicator", *range(6))
    assert [call[0] for call in script.calls] == ["all_reduce"], "its owner aborts"


@pytest.mark.parametrize("scripted", [(IN_PROGRESS, IN_PROGRESS, 0)], indirect=True)
def test_creation_does_not_block_and_is_asked_until_all_have_come(scripted):
    made, script = scripted
    assert made.create(3, bytes(range(128)), 2, nobody) == "the communicator"
    ((name, size, identity, rank, config),) = script.calls
    assert (name, size, rank, bytes(identity)) == ("comm_init_rank_config", 3, 2, bytes(range(128)))
    assert config.blocking == 0
    assert script.looks == 3


def test_a_rank_that_does_not_come_ends_the_creation_in_an_abort(scripted):
    made, script = scripted
    script.states = [IN_PROGRESS]
    begin = time.monotonic()
    with pytest.raises(CommTimeout, match=r"ncclCommInitRankConfig waited 0\.2 s for the other"):
        made.create(2, bytes(128), 0, nobody)
    assert time.monotonic() - begin < 1.0
    assert [call[0] for call in script.calls] == ["comm_init_rank_config", "comm_abort"]


def test_a_rank_that_has_left_ends_the_creation_in_an_abort(scripted):
    made, script = scripted
    script.states = [IN_PROGRESS]

    def look() -> None:
        raise RankLost("rank 1 left")

    with pytest.raises(RankLost, match="rank 1 left"):
        made.create(2, bytes(128), 0, look)
    assert [call[0] for call in script.calls] == ["comm_init_rank_config", "comm_abort"]


@pytest.mark.parametrize("scripted", [(IN_PROGRESS, SYSTEM_ERROR)], indirect=True)
def test_a_creation_that_fails_later_is_aborted_too(scripted):
    made, script = scripted
    with pytest.raises(LaunchError, match="ncclCommInitRankConfig failed: SystemError"):
        made.create(2, bytes(128), 0, nobody)
    assert script.calls[-1] == ("comm_abort", "the communicator")


@pytest.mark.parametrize("scripted", [(IN_PROGRESS, 0)], indirect=True)
def test_destruction_waits_until_the_communicator_is_final(scripted):
    made, script = scripted
    made.destroy("the communicator")
    assert [call[0] for call in script.calls] == ["comm_finalize", "comm_destroy"]
    assert script.looks == 2


def test_a_destruction_that_others_do_not_join_ends_in_an_abort(scripted):
    made, script = scripted
    script.states = [IN_PROGRESS]
    with pytest.raises(CommTimeout, match=r"ncclCommFinalize waited 0\.2 s"):
        made.destroy("the communicator")
    assert [call[0] for call in script.calls] == ["comm_finalize", "comm_abort"]


def test_an_abort_that_hangs_is_left_behind(scripted, monkeypatch):
    monkeypatch.setattr(bounded, "ABORT_SECONDS", 0.1)
    made, script = scripted
    release = threading.Event()
    script.comm_abort = lambda comm: release.wait()
    with pytest.raises(CommTimeout, match=r"ncclCommAbort waited 0\.1 s"):
        made.abort("the communicator")
    script.states = [SYSTEM_ERROR]
    with pytest.raises(LaunchError, match="failed: SystemError"):
        made.create(2, bytes(128), 0, nobody)
    release.set()


def test_asynchronous_errors_come_as_text(scripted):
    made, script = scripted
    for state in (0, IN_PROGRESS):
        script.states = [state]
        assert made.async_error("the communicator") is None
    script.states = [SYSTEM_ERROR]
    assert "SystemError" in made.async_error("the communicator")


def test_nccls_last_message_is_told_and_without_one_how_to_get_it(scripted):
    made, script = scripted
    script.states = [SYSTEM_ERROR]
    for last, words in (("no route", "NCCL's last message: no route"), ("", "NCCL_DEBUG=WARN")):
        script.get_last_error = lambda comm, last=last: last
        assert words in made.async_error("the communicator")
        with pytest.raises(CommAborted, match=words):
            made.all_reduce("the communicator", *range(6))
