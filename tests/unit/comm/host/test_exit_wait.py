"""The last wait of a rank for its peers: when it ends, and whom it notifies."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from ncclkv.comm.host import exit_wait
from ncclkv.comm.host.exit_wait import ExitWait
from ncclkv.comm.host.peer_processes import RankProcess
from ncclkv.errors import CommAborted
from ncclkv.system import abort


class Peers:
    """The processes of ranks 1 and 2, of which rank 2 is on another machine."""

    def __init__(self) -> None:
        self.ended: set[int] = set()

    def of(self, rank: int) -> RankProcess:
        # This process stands for rank 1: it runs.
        return RankProcess(rank, f"host{rank // 2}", os.getpid(), 1, 0)

    def is_near(self, rank: int) -> bool:
        return rank == 1

    def has_ended(self, rank: int) -> bool:
        return rank in self.ended


class Barrier:
    """A final barrier of rank 0; `polled` changes at each poll who is late."""

    timeout = 60.0

    def __init__(self, polled: Callable[[int], list[int]]) -> None:
        self.peers = Peers()
        self.notices: list[str] = []
        self._polled = polled
        self._polls = 0

    def arrive(self, *, near_only: bool) -> None:
        self.notices.append("near" if near_only else "all")

    def is_first(self, *, near_only: bool = False) -> bool:
        return True

    def late(self) -> list[int]:
        self._polls += 1
        return self._polled(self._polls)


def waiting(*of: Barrier, failure: str = "") -> ExitWait:
    """Return the last wait of a rank, which has failed if there is a text."""
    barriers: list[Any] = [*of]
    return ExitWait(barriers, failure)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a failure end the job, as under a launcher."""
    monkeypatch.setattr(abort, "may_end_the_job", lambda: True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the times that messages of ended processes are given."""
    monkeypatch.setattr(exit_wait, "_ARRIVAL_SECONDS", 0.02)
    monkeypatch.setattr(exit_wait, "_OTHER_MACHINES_SECONDS", 0.2)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ("", "CommAborted: rank 0: MPI reports: MPI_Iprobe failed"),
        ("RankLost: rank 1 is gone", "RankLost: rank 1 is gone"),
    ],
)
def test_an_error_of_mpi_is_a_reason_to_end_without_it(failure: str, reason: str) -> None:
    def fails(poll: int) -> list[int]:
        raise CommAborted("rank 0: MPI reports: MPI_Iprobe failed")

    assert waiting(Barrier(fails), failure=failure).wait() == reason


def test_all_ranks_are_notified_at_once_and_awaited() -> None:
    barrier = Barrier(lambda poll: [1, 2] if poll < 20 else [])
    assert waiting(barrier).wait() == ""
    assert set(barrier.notices) == {"all"}


def test_a_failed_rank_notifies_other_machines_only_once_all_have_arrived(launched: None) -> None:
    barrier = Barrier(lambda poll: [2] if poll < 5 else [])
    assert waiting(barrier, failure="RankLost: rank 1 is gone").wait() == ""
    assert barrier.notices[-1] == "all"
    assert set(barrier.notices[:-1]) == {"near"}


@pytest.mark.parametrize("rank", [1, 2])
def test_the_end_of_an_awaited_process_is_a_failure(
    rank: int, quick: None, launched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RankProcess, "state", lambda process: "has ended")
    barrier = Barrier(lambda poll: [rank])
    barrier.peers.ended.add(rank)
    died = rf"RankDied: rank {rank} on host{rank // 2} (pid {os.getpid()}) has ended"
    assert waiting(barrier).wait().startswith(died)
    assert barrier.notices[0] == "all"


def test_a_failed_rank_gives_ranks_that_run_its_patience(
    launched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exit_wait, "PATIENCE", 0.2)
    assert waiting(Barrier(lambda poll: [1]), failure="KeyError: 'w'").wait() == "KeyError: 'w'"


def test_the_limit_ends_the_job_and_names_the_late_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLKV_EXIT_TIMEOUT", "0.1")
    last = waiting(Barrier(lambda poll: [1, 2]))
    late = [str(Peers().of(rank)) for rank in (1, 2)]
    assert last.wait().endswith(f"at the end of the job for {late[0]}, {late[1]}")
    assert last.ends_job


def test_a_late_rank_of_two_barriers_is_named_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NCCLKV_EXIT_TIMEOUT", "0.15")
    monkeypatch.setattr(Barrier, "timeout", 0.1)
    shown: list[RankProcess] = []
    monkeypatch.setattr(RankProcess, "show_stacks", lambda process: shown.append(process))
    late = str(Peers().of(1))
    last = waiting(Barrier(lambda poll: [1]), Barrier(lambda poll: [1]))
    assert last.wait().endswith(f"at the end of the job for {late}")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.count(late) == 1
    assert shown == [Peers().of(1)]
