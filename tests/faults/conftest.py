"""Settings of the faults drawn from a seed."""

from __future__ import annotations

import pytest

from tests.faults import test_faults
from tests.harness.job import no_shared_memory_left

__all__ = ["no_shared_memory_left"]


def pytest_report_header(config: pytest.Config) -> str:
    return f"faults: NCCLKV_TEST_FAULTS={test_faults.SEED}:{len(test_faults.FAULTS)}"
