"""How ranks come to share memory, or not: all of them alike, with a line that says why."""

from __future__ import annotations

import logging
import os
import resource

import numpy as np
import pytest

from ncclkv import env, testing
from ncclkv.comm import threads
from ncclkv.comm.node import form
from ncclkv.errors import KVStoreError

SHARING = "the ranks of a node share memory: anonymous files"
ALONE = "the ranks of a node exchange messages, for they cannot share memory: "


def sums() -> bool:
    """Sum something; tell whether there is memory in common."""
    comm = threads.world()
    receive = np.zeros(50_000)
    comm.allreduce(np.full(50_000, comm.rank + 1.0), receive).wait()
    assert (receive == comm.size * (comm.size + 1) / 2).all()
    common = comm.common(100)
    comm.close()
    return common is not None


def said(caplog: pytest.LogCaptureFixture) -> set[str]:
    return {record.getMessage().removeprefix("ncclkv: ") for record in caplog.records}


def test_ranks_share_memory_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ncclkv"):
        assert testing.run_ranks(3, sums) == [True] * 3
    assert said(caplog) == {SHARING}


@pytest.mark.parametrize("error", [OSError(38, "no such call"), AttributeError("no memfd_create")])
def test_where_there_are_no_such_files_ranks_exchange_messages(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def refuse(*args: object) -> None:
        raise error

    monkeypatch.setattr(os, "memfd_create", refuse)
    with caplog.at_level(logging.INFO, "ncclkv"):
        assert testing.run_ranks(3, sums) == [False] * 3
    assert said(caplog) == {f"{ALONE}{error}"}


def test_a_file_that_cannot_be_reached_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(ticket: form.Ticket) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(form.FileSpace, "open", refuse)
    with caplog.at_level(logging.INFO, "ncclkv"):
        assert testing.run_ranks(2, sums) == [False] * 2
    (line,) = said(caplog)
    assert line.startswith(ALONE)
    assert "cannot open that of rank" in line


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("_free_descriptors", lambda: 70, "70 file descriptors are left; raise the limit by ulim"),
        ("_ORDERED", (), "does not keep the order of stores"),
    ],
)
def test_reasons_not_to_share(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: object,
    why: str,
) -> None:
    monkeypatch.setattr(form, name, value)
    with caplog.at_level(logging.INFO, "ncclkv"):
        assert testing.run_ranks(2, sums) == [False] * 2
    (line,) = said(caplog)
    assert why in line


def test_descriptors_are_counted() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    free = form._free_descriptors()
    with open(os.devnull) as _:
        assert form._free_descriptors() == free - (limit != resource.RLIM_INFINITY)


def test_ranks_of_one_machine_can_be_taken_for_several_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert env.split_node(range(5), 3) == [0, 1, 2, 3, 4]
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", "2")
    assert [env.split_node(range(5), rank) for rank in (0, 3, 4)] == [[0, 1], [2, 3], [4]]
    assert env.split_node([4, 6, 7], 7) == [7]
    assert testing.run_ranks(4, sums) == [True] * 4
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", "1")
    assert testing.run_ranks(3, sums) == [False] * 3


def test_ranks_of_other_calls_on_other_nodes_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
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
