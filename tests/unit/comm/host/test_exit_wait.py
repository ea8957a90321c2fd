"""The last wait of a rank for its peers, when MPI itself fails."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from ncclkv.comm.host.exit_wait import ExitWait


class Error(Exception):
    """An error of MPI, in the lines that MPICH prints."""

    def __str__(self) -> str:
        return "Other MPI error, error stack:\ninternal_Test(93): MPI_Test failed"


class Broken:
    """A barrier in which MPI reports an error."""

    timeout = 1.0

    def announce(self, to: object) -> None:
        raise Error

    def receive_arrivals(self) -> None:
        raise Error

    def late(self) -> list[object]:
        return []


@pytest.fixture(autouse=True)
def mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace mpi4py by a module that has only MPI's exception."""
    package: Any = ModuleType("mpi4py")
    package.MPI = ModuleType("mpi4py.MPI")
    package.MPI.Exception = Error
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", package.MPI)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (
            "",
            "CommAborted: MPI reports at the end: Error: Other MPI error, error stack:",
        ),
        ("RankLost: rank 1 is gone", "RankLost: rank 1 is gone"),
    ],
)
def test_an_error_of_mpi_is_a_reason_to_end_without_it(failure: str, reason: str) -> None:
    barriers: list[Any] = [Broken()]
    assert ExitWait(barriers, failure).wait() == reason
