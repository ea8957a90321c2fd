"""Settings of the tests that run in one process, without MPI.  Their ranks are threads."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_mpi():
    """A unit test that starts MPI would make the others depend on a launcher."""
    yield
    assert "mpi4py.MPI" not in sys.modules, "a test in tests/unit has started MPI"
