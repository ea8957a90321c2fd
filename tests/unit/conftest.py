"""Settings of the tests that run in one process, without MPI.  Their ranks are threads."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_mpi():
    """A unit test that starts MPI would make the others depend on a launcher."""
    before = "mpi4py.MPI" in sys.modules  # as it is when tests/ranks is collected in the same run
    yield
    started = not before and "mpi4py.MPI" in sys.modules
    assert not started, "a test in tests/unit has started MPI"
