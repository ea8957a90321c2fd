"""The choice of a sharing method: equal on all ranks, with a log line that gives the reason."""

from __future__ import annotations

import logging
import os
import platform
import resource

import numpy as np
import pytest

import ncclkv
from ncclkv import env, testing
from ncclkv.comm.host import threads
from ncclkv.comm.shm import setup
from ncclkv.comm.shm.node import CONTROL_BYTES
from ncclkv.comm.shm.segment import MIB, MemfdSegment, Ticket
from ncclkv.errors import KVStoreError, LaunchError

SHARING = "the ranks of a node share memory: anonymous files"
HALVES = "the ranks of a node copy through shared memory: a window with halves of 4 MiB"
ALONE = "the ranks of a node exchange messages"
BY_NAME = {"files": SHARING, "halves": HALVES, "messages": ALONE}


def sums() -> bool:
    """Make a sum, and return whether the ranks share memory."""
    comm = threads.world()
    receive = np.zeros(50_000)
    comm.allreduce(np.full(50_000, comm.rank + 1.0), receive).wait()
    assert (receive == comm.size * (comm.size + 1) / 2).all()
    common = comm.node_shared(100)
    comm.close()
    return common is not None


def said(caplog: pytest.LogCaptureFixture) -> set[str]:
    return {record.getMessage().removeprefix("ncclkv: ") for record in caplog.records}


def test_ranks_share_memory_and_log_the_method(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ncclkv"):
        assert testing.run_ranks(3, sums) == [True] * 3
    assert said(caplog) == {SHARING}


def agreed() -> tuple[str, str, list[str]]:
    """Return the method of a communicator, and the reasons against faster methods."""
    comm = threads.world()
    sharing = comm.sharing
    comm.close()
    return sharing.method, sharing.action, list(sharing.reasons)


@pytest.mark.parametrize("method", env.NODE_MEMORY)
def test_the_agreement_is_a_value_on_every_rank(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", method)
    action = BY_NAME[method].removeprefix("the ranks of a node ")
    reasons = [] if method == "files" else [f"NCCLKV_NODE_MEMORY={method}"]
    assert testing.run_ranks(3, agreed) == [(method, action, reasons)] * 3


@pytest.mark.parametrize("error", [OSError(38, "no such call"), AttributeError("no memfd_create")])
def test_without_memfd_ranks_copy_through_a_window(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def refuse(*args: object) -> None:
        raise error

    monkeypatch.setattr(os, "memfd_create", refuse)
    with caplog.at_level(logging.INFO, "ncclkv"):
        assert testing.run_ranks(3, sums) == [False] * 3
    assert said(caplog) == {f"{HALVES} (files: {error})"}


def test_a_file_that_cannot_be_opened_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(ticket: Ticket) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(MemfdSegment, "open", refuse)
    with caplog.at_level(logging.INFO, "ncclkv"):
        assert testing.run_ranks(2, sums) == [False] * 2
    (line,) = said(caplog)
    assert line.startswith(HALVES)
    assert (
        "(files: rank 0 cannot open the memory file of rank 1: [Errno 13] Permission denied)"
        in line
    )


def test_with_few_descriptors_files_are_not_shared(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(setup, "free_descriptors", lambda: 70)
    with caplog.at_level(logging.INFO, "ncclkv"):
        assert testing.run_ranks(2, sums) == [False] * 2
    (line,) = said(caplog)
    assert "(files: 70 file descriptors are left; raise the limit by ulimit -n)" in line


def test_without_ordered_stores_ranks_exchange_messages(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(setup, "_ORDERED", ())
    with caplog.at_level(logging.INFO, "ncclkv"):
        assert testing.run_ranks(2, sums) == [False] * 2
    assert said(caplog) == {f"{ALONE} ({platform.machine()} does not keep the order of stores)"}


@pytest.mark.parametrize(
    ("free", "ends"),
    [
        (10 * MIB, f"{HALVES} (files: none)"),
        (8 * MIB, f"{ALONE} (files: none; halves: half of the memory that is free for windows is "
                  f"8.0 MiB a rank, and 9.9 are needed)"),
        (-MIB, f"{ALONE} (files: none; halves: half of the memory that is free for windows is "
               f"0.0 MiB a rank, and 9.9 are needed)"),
    ],
)  # fmt: skip
def test_free_space_decides_on_windows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, free: int, ends: str
) -> None:
    def refuse(*args: object) -> None:
        raise OSError("none")

    monkeypatch.setattr(os, "memfd_create", refuse)
    # The smallest amount on a node decides; half of it stays free.
    left = {0: 1 << 40, 1: 2 * 3 * free, 2: 1 << 40}
    monkeypatch.setattr(
        threads.ThreadTransport, "windows_left", lambda transport: left[transport.rank]
    )
    with caplog.at_level(logging.INFO, "ncclkv"):
        assert testing.run_ranks(3, sums) == [False] * 3
    assert said(caplog) == {ends}


@pytest.mark.parametrize(("way", "words"), BY_NAME.items())
def test_the_environment_names_the_first_method(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str, words: str
) -> None:
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", way)
    with caplog.at_level(logging.INFO, "ncclkv"):
        testing.run_ranks(2, sums)
    (line,) = said(caplog)
    assert line.startswith(words)
    assert (f"(NCCLKV_NODE_MEMORY={way})" in line) == (way != "files")


@pytest.mark.parametrize("rank", [0, 2])
def test_without_a_window_on_one_rank_no_rank_has_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, rank: int
) -> None:
    make = threads.ThreadTransport.window

    def window(transport: threads.ThreadTransport, nbytes: int) -> list[np.ndarray]:
        made = make(transport, nbytes)
        if transport.rank == rank:
            raise OSError("not here")
        return made

    monkeypatch.setenv("NCCLKV_NODE_MEMORY", "halves")
    monkeypatch.setattr(threads.ThreadTransport, "window", window)
    with caplog.at_level(logging.INFO, "ncclkv"):
        assert testing.run_ranks(3, sums) == [False] * 3
    why = "NCCLKV_NODE_MEMORY=halves; halves: not here"
    assert said(caplog) == {f"{ALONE} ({why})"}


def test_ranks_with_different_methods_take_the_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wishes = iter(["files", "halves", "files"])
    monkeypatch.setattr(env, "node_memory", lambda: next(wishes))
    with caplog.at_level(logging.INFO, "ncclkv"):
        assert testing.run_ranks(3, sums) == [False] * 3
    assert said(caplog) == {f"{HALVES} (NCCLKV_NODE_MEMORY=halves)"}


def test_an_unknown_method_is_refused_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", "Files")
    with pytest.raises(LaunchError, match="NCCLKV_NODE_MEMORY='Files'") as caught:
        env.node_memory()
    wrong = str(caught.value)
    assert "set one of files, halves, messages, or unset it" in wrong
    monkeypatch.delenv("NCCLKV_NODE_MEMORY")
    right = iter([True, True, False])

    def node_memory() -> str:
        if next(right):
            return "files"
        raise LaunchError(wrong)

    def body() -> str:
        with pytest.raises(LaunchError) as caught:
            ncclkv.create("threads")
        return str(caught.value)

    monkeypatch.setattr(env, "node_memory", node_memory)
    texts = set(testing.run_ranks(3, body))
    assert texts in [{f"rank {rank} of 3: {wrong}"} for rank in range(3)]


def test_several_nodes_have_a_window_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", "2")
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", "halves")
    with caplog.at_level(logging.INFO, "ncclkv"):
        assert testing.run_ranks(5, sums) == [False] * 5
    (line,) = said(caplog)
    assert line.startswith(HALVES)


def test_arrays_that_do_not_fit_a_segment_are_copied_through_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MemfdSegment, "capacity", CONTROL_BYTES + 3 * MIB)

    def body() -> list[bool]:
        comm = threads.world()
        sends = [comm.allocate(MIB).view(np.float32) for _ in range(4)]
        commons = [comm.node_shared(MIB) for _ in range(4)]
        for number, send in enumerate(sends):
            send[:] = number + comm.rank
            for receive in (np.zeros_like(send), *sends[number + 1 :]):
                comm.allreduce(send, receive).wait()
                assert (receive == 3 * number + 3).all()
        inside = [comm._node.offset_of(send) is not None for send in sends]
        comm.close()
        return [*inside, *(common is not None for common in commons)]

    found = testing.run_ranks(3, body)
    # The first rank's file has one half for its own arrays and one for shared arrays.
    commons = [True, False, False, False]
    assert found[0] == [True, False, False, False, *commons]
    assert found[1] == found[2] == [True, True, False, False, *commons]


def test_descriptors_are_counted() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    free = setup.free_descriptors()
    with open(os.devnull) as _:
        assert setup.free_descriptors() == free - (limit != resource.RLIM_INFINITY)


def test_ranks_of_one_machine_can_be_split_into_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert env.split_node(range(5), 3) == [0, 1, 2, 3, 4]
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", "2")
    assert [env.split_node(range(5), rank) for rank in (0, 3, 4)] == [[0, 1], [2, 3], [4]]
    assert env.split_node([4, 6, 7], 7) == [7]
    assert testing.run_ranks(4, sums) == [True] * 4
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", "1")
    assert testing.run_ranks(3, sums) == [False] * 3


def test_other_calls_on_other_nodes_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", "2")

    def body() -> str:
        comm = threads.world()
        mine = np.ones(100_000 + 10 * (comm.rank // 2))
        with pytest.raises(KVStoreError) as caught:
            comm.allreduce(mine, mine).wait(5.0)
        comm.abort("as expected")
        return f"{type(caught.value).__name__}: {caught.value}"

    for rank, text in enumerate(testing.run_ranks(3, body)):
        assert text.startswith(f"OrderMismatch: rank {rank}: rank"), text
        assert "made different calls" in text
