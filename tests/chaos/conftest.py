"""Settings of the tests that start jobs which go wrong."""

from __future__ import annotations

from tests.harness.job import job, no_shared_memory_left

__all__ = ["job", "no_shared_memory_left"]
