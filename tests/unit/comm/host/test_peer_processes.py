"""Ranks that may receive a notice after a loss: MPICH may crash in a message to a dead one."""

from __future__ import annotations

import os
from typing import Any

import pytest

from ncclkv.comm.host.peer_processes import PeerProcesses
from ncclkv.system.processes import namespace

ADDRESSES: tuple[str, ...] = ()
"""Addresses of a machine that accepts no connection."""


class Exchange:
    """Exchange of addresses between ranks when `PeerProcesses` are made."""

    def __init__(self, *each: Any) -> None:
        self._each = list(each)

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return len(self._each)

    def allgather(self, own: Any) -> list[Any]:
        return self._each


def far(library: str = "MPICH 5.0.2") -> PeerProcesses:
    """Return rank 0 on this machine, and ranks 1 and 2 on machines that cannot be watched."""
    everyone: Any = Exchange(*((f"node{rank}", ADDRESSES, 1000 + rank) for rank in range(3)))
    machine: Any = Exchange((0, os.getpid(), namespace()))
    return PeerProcesses(everyone, machine, library)


def test_without_a_failure_every_rank_may_get_notices() -> None:
    peers = far()
    assert all(peers.may_notify(1, after_failure=False) for _ in range(3))


def test_after_a_failure_an_unwatched_rank_gets_one_notice() -> None:
    peers = far()
    assert [peers.may_notify(1, after_failure=True) for _ in range(3)] == [True, False, False]
    assert peers.may_notify(2, after_failure=True), "each rank has its own"


def test_a_rank_with_an_mpi_error_gets_no_notice() -> None:
    peers = far()
    peers.failed.add(1)
    assert not peers.may_notify(1, after_failure=False)
    assert [peers.may_notify(2, after_failure=False) for _ in range(2)] == [True, False]


def test_no_warning_while_all_ranks_live(capsys: pytest.CaptureFixture[str]) -> None:
    far("Open MPI v5.0.11").warn_of_loss()
    assert capsys.readouterr().err == ""
