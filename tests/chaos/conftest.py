"""Settings of the tests that start failing jobs."""

from __future__ import annotations

from tests.harness.job import job

__all__ = ["job"]
