"""Settings of the tests that start jobs of their own."""

from __future__ import annotations

from tests.harness.job import LIMIT, ROOT, Ended, Job, job

PROGRAMS = ROOT / "tests" / "jobs" / "programs"

__all__ = ["LIMIT", "PROGRAMS", "ROOT", "Ended", "Job", "job"]
