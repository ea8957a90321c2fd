"""Settings of the tests that start jobs which go wrong."""

from __future__ import annotations

from tests.harness.job import job

__all__ = ["job"]
