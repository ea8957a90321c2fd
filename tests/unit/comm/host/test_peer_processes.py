"""Who may be sent a notice once ranks are lost: MPICH may crash in a message to one that ended."""

from __future__ import annotations

import os
from typing import Any

import pytest

from ncclkv.comm.host.peer_processes import PeerProcesses
from ncclkv.system.processes import namespace

ADDRESSES: tuple[str, ...] = ()
"""Of a machine that no connection reaches."""


class Told:
    """What a communicator's ranks tell each other when `PeerProcesses` are made."""

    def __init__(self, *each: Any) -> None:
        self._each = list(each)

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return len(self._each)

    def allgather(self, own: Any) -> list[Any]:
        return self._each


def far(library: str = "MPICH 5.0.2") -> PeerProcesses:
    """Rank 0 on this machine, and ranks 1 and 2 on others that cannot be watched."""
    everyone: Any = Told(*((f"node{rank}", ADDRESSES, 1000 + rank) for rank in range(3)))
    machine: Any = Told((0, os.getpid(), namespace()))
    return PeerProcesses(everyone, machine, library)


def test_without_trouble_anybody_may_be_told() -> None:
    peers = far()
    assert all(peers.may_tell(1, troubled=False) for _ in range(3))


def test_one_that_cannot_be_watched_gets_one_notice_in_trouble() -> None:
    peers = far()
    assert [peers.may_tell(1, troubled=True) for _ in range(3)] == [True, False, False]
    assert peers.may_tell(2, troubled=True), "each rank has its own"


def test_one_about_which_mpi_reported_an_error_gets_none() -> None:
    peers = far()
    peers.failed.add(1)
    assert not peers.may_tell(1, troubled=False)
    assert [peers.may_tell(2, troubled=False) for _ in range(2)] == [True, False]


def test_nothing_is_foretold_while_all_live(capsys: pytest.CaptureFixture[str]) -> None:
    far("Open MPI v5.0.11").foretell()
    assert capsys.readouterr().err == ""
