"""Groups of MPI: the ranks that two communicators have in common, and a name of its ranks."""

from __future__ import annotations

import zlib
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


def ranks_name(comm: MPI.Comm) -> str:
    """Return eight digits that name the ranks of `comm`, equal on these ranks.

    Empty if a rank is in no ``COMM_WORLD`` of this process: a spawned rank has another one.
    """
    from mpi4py import MPI

    group, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    ranks = MPI.Group.Translate_ranks(group, range(comm.Get_size()), world)
    group.Free()
    world.Free()
    return "" if MPI.UNDEFINED in ranks else f"{zlib.crc32(str([*ranks]).encode()):08x}"
