"""Settings of the faults drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults import test_faults
from tests.harness import leftovers


@pytest.fixture(autouse=True)
def no_shared_memory_of_mpirun() -> Iterator[None]:
    """Remove what mpirun has left in the shared memory of this machine."""
    there = leftovers.present()
    yield
    leftovers.sweep(there)


def pytest_report_header(config: pytest.Config) -> str:
    return f"faults: NCCLKV_TEST_FAULTS={test_faults.SEED}:{len(test_faults.FAULTS)}"
