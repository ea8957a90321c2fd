"""Processes of ranks, and those that may receive a notice: MPICH may crash at a dead one."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ncclkv.comm.host.liveness import Endpoint
from ncclkv.comm.host.peer_processes import PeerProcesses, RankProcess
from ncclkv.system.processes import namespace

Described = tuple[RankProcess, Endpoint | None]
"""The process of a rank, and its port if there are several machines."""


class Exchange:
    """Exchange between ranks when `PeerProcesses` are made; this is rank 0 of three."""

    def __init__(self, *others: Described) -> None:
        self.own: Described | None = None
        self._others = others

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 1 + len(self._others)

    def allgather(self, own: Described) -> list[Described]:
        self.own = own
        return [own, *self._others]


def process(rank: int, pid: int) -> RankProcess:
    """Return the process of a rank, in the namespace of this process."""
    return RankProcess(rank, f"node{rank}", pid, namespace(), 0)


@pytest.fixture(autouse=True)
def mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace mpi4py by a module that has only the world's rank."""
    package: Any = ModuleType("mpi4py")
    package.MPI = SimpleNamespace(COMM_WORLD=Exchange())
    monkeypatch.setitem(sys.modules, "mpi4py", package)


def exchange_of_machines() -> Any:
    """Return an exchange with ranks 1 and 2 on machines that cannot be watched."""
    return Exchange(*((process(rank, 1000 + rank), Endpoint((), 1000)) for rank in (1, 2)))


def exchange_on_machine() -> Any:
    """Return an exchange on this machine: this process is rank 1, and rank 2 is in a container."""
    contained = process(2, os.getpid())._replace(namespace=namespace() + 1)
    return Exchange((process(1, os.getpid()), None), (contained, None))


def far(library: str = "MPICH 5.0.2") -> PeerProcesses:
    """Return rank 0 on this machine, and ranks 1 and 2 on others."""
    return PeerProcesses(exchange_of_machines(), [0], library)


def near() -> PeerProcesses:
    """Return ranks of this machine."""
    return PeerProcesses(exchange_on_machine(), [0, 1, 2], "MPICH 5.0.2")


def test_processes_of_this_machine_are_seen_unless_they_are_in_another_namespace() -> None:
    peers = near()
    assert [peers.is_near(rank) for rank in range(3)] == [False, True, False]
    assert not any(map(peers.has_ended, range(3)))
    assert not any(map(far().is_near, range(3)))


@pytest.mark.parametrize("several", [False, True])
def test_ranks_of_one_machine_open_no_port(several: bool) -> None:
    exchange = exchange_of_machines() if several else exchange_on_machine()
    PeerProcesses(exchange, [0] if several else [0, 1, 2], "MPICH 5.0.2")
    assert (exchange.own[1] is not None) == several


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
