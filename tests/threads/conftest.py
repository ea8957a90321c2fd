"""Settings of the tests on ranks that are threads, without MPI."""

from __future__ import annotations

from tests.unit.conftest import _no_mpi

__all__ = ["_no_mpi"]
