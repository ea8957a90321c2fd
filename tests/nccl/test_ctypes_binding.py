"""Layer 0: the binding over a libnccl with scripted results (tests/nccl/scripted_nccl.py)."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from ncclkv.comm.nccl import deadlines
from ncclkv.comm.nccl.binding import DTYPES
from ncclkv.comm.nccl.ctypes_binding import CtypesBinding
from ncclkv.comm.nccl.library import UNIQUE_ID_BYTES
from ncclkv.errors import CommAborted, CommTimeout, LaunchError, RankLost
from tests.nccl.scripted_nccl import COMM, IN_PROGRESS, SYSTEM_ERROR, Scripted

LIMIT = 0.2
"""Seconds that a call may wait in these tests."""

CALLS = [
    ("all_reduce", "ncclAllReduce", 6),
    ("reduce", "ncclReduce", 7),
    ("broadcast", "ncclBroadcast", 6),
    ("reduce_scatter", "ncclReduceScatter", 6),
    ("all_gather", "ncclAllGather", 5),
    ("send", "ncclSend", 5),
    ("receive", "ncclRecv", 5),
]
"""Names of a call in the binding and in NCCL, and the number of its integers."""

EACH = pytest.mark.parametrize(("name", "nccls", "count"), CALLS)


def nobody() -> None:
    """Return that no rank has left."""


def over(*states: int, code: int = 0, **options: Any) -> tuple[CtypesBinding, Scripted]:
    """Return a binding, and the scripted library under it."""
    script = Scripted(*states, code=code)
    return CtypesBinding(library=script.library(), **{"timeout": LIMIT, **options}), script


@EACH
def test_calls_pass_their_arguments_in_order(name, nccls, count):
    binding, script = over()
    getattr(binding, name)(COMM, *range(count))
    assert script.calls == [(nccls, *range(count - 1), COMM, count - 1)]
    assert script.looks == 0, "a call that is done is not asked for"


@EACH
def test_a_call_returns_when_nccl_is_done_with_it(name, nccls, count):
    binding, script = over(IN_PROGRESS, IN_PROGRESS, 0, code=IN_PROGRESS)
    getattr(binding, name)(COMM, *range(count))
    assert (script.looks, script.states) == (3, [0])


@EACH
@pytest.mark.parametrize("when", ["at once", "meanwhile"])
def test_errors_are_ours_with_version_and_call(name, nccls, count, when):
    code = SYSTEM_ERROR if when == "at once" else IN_PROGRESS
    binding, _ = over(IN_PROGRESS, SYSTEM_ERROR, code=code)
    with pytest.raises(CommAborted) as caught:
        getattr(binding, name)(COMM, *range(count))
    assert type(caught.value) is CommAborted
    text = str(caught.value)
    assert f"NCCL 2.28.9: {nccls} failed: ncclSystemError (words for 2)" in text


def test_unknown_codes_are_errors():
    binding, _ = over(99, code=99)
    with pytest.raises(CommAborted, match=r"ncclAllReduce failed: code 99 \(words for 99\)"):
        binding.all_reduce(COMM, *range(6))
    assert "code 99" in str(binding.async_error(COMM))


def test_in_a_group_the_end_waits_for_all_of_it():
    binding, script = over()
    binding.group_start()
    binding.group_start()
    binding.all_reduce(1, *range(6))
    script.code = IN_PROGRESS
    binding.all_gather(2, *range(5))
    script.code = 0
    binding.group_end()
    assert script.looks == 0
    script.states, script.code = [IN_PROGRESS, 0], IN_PROGRESS
    binding.group_end()
    assert script.looks == 3
    script.code = 0
    binding.all_reduce(1, *range(6))
    assert script.looks == 3, "the group is over"


def test_a_group_is_of_its_thread():
    binding, script = over(IN_PROGRESS, 0, code=IN_PROGRESS)
    binding.group_start()
    other = threading.Thread(target=binding.all_reduce, args=(COMM, *range(6)))
    other.start()
    other.join()
    assert script.looks == 2, "a call of another thread is not in this one's group"


def test_a_group_that_fails_is_over():
    binding, script = over()
    binding.group_start()
    binding.send(1, *range(5))
    script.codes["ncclGroupEnd"] = SYSTEM_ERROR
    with pytest.raises(CommAborted, match="ncclGroupEnd failed: ncclSystemError"):
        binding.group_end()
    script.codes["ncclGroupEnd"] = IN_PROGRESS
    binding.group_start()
    binding.group_end()
    assert script.looks == 0, "nothing of the group that failed is waited for"


def test_a_call_that_nccl_does_not_end_has_a_deadline():
    binding, script = over(IN_PROGRESS, code=IN_PROGRESS)
    with pytest.raises(CommTimeout, match=r"ncclAllReduce waited 0\.2 s for the other ranks"):
        binding.all_reduce(COMM, *range(6))
    assert script.names() == ["ncclAllReduce"], "its owner aborts"


@pytest.mark.parametrize(
    ("options", "blocking", "ctas"),
    [({}, 1, -(2**31)), ({"blocking": False}, 0, -(2**31)), ({"max_ctas": 2}, 1, 2)],
)
def test_a_communicator_is_created_with_its_configuration(options, blocking, ctas):
    binding, script = over(**options)
    assert binding.create(3, bytes(range(128)), 2, nobody) == COMM
    ((name, _, size, identity, rank, config),) = script.calls
    assert (name, size, rank) == ("ncclCommInitRankConfig", 3, 2)
    assert bytes(identity) == bytes(range(128))
    fields = config._obj
    assert (fields.size, fields.magic, fields.version) == (48, 0xCAFEBEEF, 21700)
    assert (fields.blocking, fields.maxCTAs, fields.minCTAs) == (blocking, ctas, -(2**31))


def test_non_blocking_creation_is_polled_until_all_ranks_have_joined():
    binding, script = over(IN_PROGRESS, IN_PROGRESS, 0, code=IN_PROGRESS)
    assert binding.create(3, bytes(128), 2, nobody) == COMM
    assert script.looks == 3


def test_a_communicator_that_does_not_block_cannot_be_captured():
    blocking, _ = over()
    blocking.create(2, bytes(128), 0, nobody)
    assert blocking.uncaptured == ""
    other, _ = over(code=IN_PROGRESS)
    other.create(2, bytes(128), 0, nobody)
    assert "unset NCCL_COMM_BLOCKING on every rank, also in nccl.conf" in other.uncaptured


@pytest.mark.parametrize(
    ("setting", "blocking", "captured"),
    [("", True, True), ("", False, False), ("0", True, False), ("1", False, True)],
)
def test_a_creation_that_ends_at_once_may_not_block(
    monkeypatch: pytest.MonkeyPatch, setting: str, blocking: bool, captured: bool
) -> None:
    monkeypatch.setenv("NCCL_COMM_BLOCKING", setting)
    binding, _ = over(blocking=blocking)
    binding.create(2, bytes(128), 0, nobody)
    assert (binding.uncaptured == "") == captured


def test_a_missing_rank_ends_the_creation_by_an_abort():
    binding, script = over(IN_PROGRESS, code=IN_PROGRESS)
    begin = time.monotonic()
    with pytest.raises(CommTimeout, match=r"ncclCommInitRankConfig waited 0\.2 s for the other"):
        binding.create(2, bytes(128), 0, nobody)
    assert time.monotonic() - begin < 1.0
    assert script.names() == ["ncclCommInitRankConfig", "ncclCommAbort"]


def test_a_rank_that_left_ends_the_creation_by_an_abort():
    binding, script = over(IN_PROGRESS, code=IN_PROGRESS)

    def look() -> None:
        raise RankLost("rank 1 left")

    with pytest.raises(RankLost, match="rank 1 left"):
        binding.create(2, bytes(128), 0, look)
    assert script.names() == ["ncclCommInitRankConfig", "ncclCommAbort"]


@pytest.mark.parametrize("code", [IN_PROGRESS, SYSTEM_ERROR])
def test_a_creation_that_fails_is_aborted_too(code):
    binding, script = over(IN_PROGRESS, SYSTEM_ERROR)
    script.codes["ncclCommInitRankConfig"] = code
    with pytest.raises(LaunchError, match="ncclCommInitRankConfig failed: ncclSystemError"):
        binding.create(2, bytes(128), 0, nobody)
    assert script.calls[-1] == ("ncclCommAbort", COMM)


def test_a_creation_that_gives_no_communicator_has_none_to_abort():
    binding, script = over()

    def refuse(comm: Any, *_: object) -> int:
        comm._obj.value = None
        return SYSTEM_ERROR

    script.codes["ncclCommInitRankConfig"] = refuse
    with pytest.raises(LaunchError, match="ncclSystemError"):
        binding.create(2, bytes(128), 0, nobody)
    assert script.names() == ["ncclCommInitRankConfig"]


def test_a_creation_that_blocks_and_waits_for_a_rank_that_has_left_ends_at_once():
    release = threading.Event()
    binding, script = over(timeout=60)
    script.codes["ncclCommInitRankConfig"] = lambda *_: int(not release.wait())
    looks: list[int] = []

    def look() -> None:
        looks.append(threading.get_ident())
        if len(looks) == 3:
            raise RankLost("rank 1 left")

    begin = time.monotonic()
    with pytest.raises(RankLost, match="rank 1 left"):
        binding.create(2, bytes(128), 0, look)
    assert time.monotonic() - begin < 5.0
    assert set(looks) == {threading.get_ident()}
    assert script.names() == ["ncclCommInitRankConfig"], "NCCL is still in it: no abort"
    release.set()


def test_a_rank_joins_on_its_own_device(monkeypatch):
    """Check a thread: its current device is the first one until it sets another."""
    cupy = pytest.importorskip("cupy", reason="needs CuPy: pip install 'ncclkv[cuda12]'")
    used: dict[int, int] = {}

    def device(number: int) -> Any:
        return SimpleNamespace(use=lambda: used.update({threading.get_ident(): number}))

    monkeypatch.setattr(cupy.cuda, "Device", device)
    binding, script = over(device=3)
    binding.create(2, bytes(UNIQUE_ID_BYTES), 1, nobody)
    assert used == {script.threads[0]: 3}
    assert script.threads[0] != threading.get_ident()


@pytest.mark.parametrize("code", [0, IN_PROGRESS])
def test_destruction_waits_until_the_communicator_is_final(code):
    binding, script = over(IN_PROGRESS, 0, code=code)
    binding.destroy(COMM)
    assert script.calls == [("ncclCommFinalize", COMM), ("ncclCommDestroy", COMM)]
    assert script.looks == (2 if code else 0)


def test_a_destruction_that_others_do_not_join_ends_in_an_abort():
    binding, script = over(IN_PROGRESS, code=IN_PROGRESS)
    with pytest.raises(CommTimeout, match=r"ncclCommFinalize waited 0\.2 s"):
        binding.destroy(COMM)
    assert script.names() == ["ncclCommFinalize", "ncclCommAbort"]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("destroy", "ncclCommFinalize"),
        ("destroy", "ncclCommDestroy"),
        ("abort", "ncclCommAbort"),
    ],
)
def test_an_end_that_fails_is_reported(call, name):
    binding, script = over()
    script.codes[name] = SYSTEM_ERROR
    with pytest.raises(CommAborted, match=f"{name} failed: ncclSystemError"):
        getattr(binding, call)(COMM)


def test_what_hangs_is_left_behind(monkeypatch):
    monkeypatch.setattr(deadlines, "ABORT_SECONDS", 0.1)
    release = threading.Event()
    binding, script = over(timeout=0.1)
    for call, name in ((binding.destroy, "ncclCommFinalize"), (binding.abort, "ncclCommAbort")):
        script.codes = {name: lambda _: int(not release.wait())}
        begin = time.monotonic()
        with pytest.raises(CommTimeout, match=rf"{name} waited 0\.1 s for the other ranks"):
            call(COMM)
        assert time.monotonic() - begin < 1.0
    assert script.names() == ["ncclCommFinalize", "ncclCommAbort"]
    release.set()


def test_an_abort_that_hangs_hides_no_error(monkeypatch):
    monkeypatch.setattr(deadlines, "ABORT_SECONDS", 0.1)
    release = threading.Event()
    binding, script = over(SYSTEM_ERROR, code=IN_PROGRESS)
    script.codes["ncclCommAbort"] = lambda _: int(not release.wait())
    with pytest.raises(LaunchError, match="failed: ncclSystemError"):
        binding.create(2, bytes(128), 0, nobody)
    release.set()


def test_at_the_end_of_a_python_without_new_threads_a_call_is_made_in_place(monkeypatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    binding, script = over()
    binding.abort(COMM)
    assert script.calls == [("ncclCommAbort", COMM)]
    script.code = SYSTEM_ERROR
    with pytest.raises(CommAborted, match="ncclCommFinalize failed: ncclSystemError"):
        binding.destroy(COMM)


def test_asynchronous_errors_come_as_text():
    binding, script = over()
    for state in (0, IN_PROGRESS):
        script.states = [state]
        assert binding.async_error(COMM) is None
    script.states = [SYSTEM_ERROR]
    assert "ncclSystemError (words for 2)" in str(binding.async_error(COMM))


@pytest.mark.parametrize(
    ("last", "words"),
    [(b"no route", "NCCL's last message: no route"), (b"", "NCCL_DEBUG=WARN")],
)
def test_errors_have_nccls_last_message_or_the_way_to_get_it(last, words):
    binding, script = over(SYSTEM_ERROR, code=SYSTEM_ERROR)
    script.last = last
    assert words in str(binding.async_error(COMM))
    with pytest.raises(CommAborted, match=words):
        binding.all_reduce(COMM, *range(6))


def test_ranks_connect_by_a_byte_each_way_in_one_group_of_one_thread():
    binding, script = over()
    binding.connect(COMM, [2, 0], (100, 101), 7)
    byte = DTYPES["uint8"]
    assert script.calls == [
        ("ncclGroupStart",),
        ("ncclRecv", 101, 1, byte, 2, COMM, 7),
        ("ncclSend", 100, 1, byte, 2, COMM, 7),
        ("ncclRecv", 102, 1, byte, 0, COMM, 7),
        ("ncclSend", 100, 1, byte, 0, COMM, 7),
        ("ncclGroupEnd",),
    ]
    assert len(set(script.threads)) == 1, "a group is of its thread"
    assert script.threads[0] != threading.get_ident()


def test_a_rank_that_does_not_connect_passes_the_deadline():
    release = threading.Event()
    binding, script = over(timeout=0.1)
    script.codes["ncclGroupEnd"] = lambda: int(not release.wait())
    begin = time.monotonic()
    with pytest.raises(CommTimeout, match=r"ncclGroupEnd waited 0\.1 s for the other ranks"):
        binding.connect(COMM, [1], (100, 101), 7)
    assert time.monotonic() - begin < 1.0
    release.set()


def lost() -> None:
    """Raise the error of a rank that has left."""
    raise RankLost("rank 1 left")


@pytest.mark.parametrize(
    ("call", "arguments", "name"),
    [
        ("connect", ([1], (100, 101), 7), "ncclGroupEnd"),
        ("destroy", (), "ncclCommFinalize"),
    ],
)
def test_a_rank_that_leaves_ends_a_wait_for_all_ranks_before_the_deadline(call, arguments, name):
    release = threading.Event()
    binding, script = over(timeout=30.0)
    script.codes[name] = lambda *_: int(not release.wait())
    begin = time.monotonic()
    with pytest.raises(RankLost, match="rank 1 left"):
        getattr(binding, call)(COMM, *arguments, lost)
    assert time.monotonic() - begin < 1.0
    release.set()


def test_the_last_look_is_after_the_deadline():
    """Check that a look whose deadline is that of the call raises its own error."""
    release, late = threading.Event(), time.monotonic() + LIMIT

    def look() -> None:
        if time.monotonic() > late:
            raise CommTimeout("the other ranks, by name")

    binding, script = over()
    script.codes["ncclGroupEnd"] = lambda: int(not release.wait())
    with pytest.raises(CommTimeout, match="by name"):
        binding.connect(COMM, [1], (100, 101), 7, look)
    release.set()


def test_another_binding_has_a_timeout_of_its_own():
    release = threading.Event()
    binding, script = over(timeout=30.0, max_ctas=2)
    child = binding.another(0.1)
    child.create(2, bytes(128), 0, nobody)
    ((*_, config),) = script.calls
    assert (config._obj.blocking, config._obj.maxCTAs) == (1, 2)
    script.codes["ncclGroupEnd"] = lambda: int(not release.wait())
    with pytest.raises(CommTimeout, match=r"ncclGroupEnd waited 0\.1 s"):
        child.connect(COMM, [1], (100, 101), 7)
    release.set()
