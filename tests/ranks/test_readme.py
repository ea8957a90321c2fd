"""The README's first program under mpirun."""

from __future__ import annotations

from mpi4py import MPI

from tests.conformance.readme import check_first_program


def test_the_first_program_gives_what_its_comments_say() -> None:
    check_first_program(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
