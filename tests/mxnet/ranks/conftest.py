"""Settings of the tests with MXNet on every rank, as in ``mpirun -n 4 python -m pytest``."""

from __future__ import annotations

from ncclkv.comm import backoff
from tests.harness.ranks import pytest_configure

__all__ = ["pytest_configure"]

# More ranks than cores: ranks that poll less leave the cores to the ranks that they await.
backoff.YIELDS, backoff.FIRST_SLEEP = 10, 200e-6
