"""Groups of MPI: the ranks that two communicators have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI


def common_ranks(comm: MPI.Comm, other: MPI.Comm) -> list[int]:
    """Return the ranks of `comm` whose processes are also in `other`."""
    from mpi4py import MPI

    group, other_group = comm.Get_group(), other.Get_group()
    others = MPI.Group.Translate_ranks(group, range(comm.Get_size()), other_group)
    group.Free()
    other_group.Free()
    return [rank for rank, found in enumerate(others) if found != MPI.UNDEFINED]
