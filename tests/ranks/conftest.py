"""Settings of the tests that run on every rank of a job, as in ``mpirun -n 4 python -m pytest``.

All ranks run the same tests in the same order and agree on each outcome; see `tests.harness.ranks`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from mpi4py import MPI

from tests.cases.place import SeveralNodes, at, here
from tests.harness.ranks import pytest_configure

__all__ = ["pytest_configure"]


@pytest.fixture(scope="session")
def comm_world() -> MPI.Intracomm:
    """mpi4py's communicator of all ranks."""
    return MPI.COMM_WORLD


@pytest.fixture(autouse=True)
def place() -> Iterator[None]:
    """Where ranks are taken for ones on several nodes, they do not promise the order of sums."""
    split = "NCCLKV_RANKS_PER_NODE" in os.environ
    with at(SeveralNodes() if split else here()):
        yield
