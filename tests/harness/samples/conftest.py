"""The samples run as the tests of `tests/ranks` do, but do not import the package."""

import pytest
from mpi4py import MPI

from tests.harness.ranks import pytest_configure

__all__ = ["pytest_configure"]


@pytest.fixture(scope="session")
def comm_world():
    return MPI.COMM_WORLD
