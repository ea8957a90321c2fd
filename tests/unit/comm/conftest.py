"""Settings of these tests: their ranks are threads, and stay on one core."""

from __future__ import annotations

from tests.harness.one_core import _one_core

__all__ = ["_one_core"]
