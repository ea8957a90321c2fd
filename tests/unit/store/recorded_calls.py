"""Two ranks whose recorded calls a test reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ncclkv
from ncclkv.comm.diagnosis.reports import RecordedCall
from ncclkv.testing import run_ranks
from tests.harness.context import context_of
from tests.harness.slow import stretched


def full(value: float = 1.0) -> np.ndarray:
    return np.full(3, value, np.float64)


def last(kv: Any) -> RecordedCall:
    """Return the last recorded call."""
    return context_of(kv).comm.calls.recorder.read(kv.rank, 1).calls[-1]


def noted(kv: Any) -> tuple[int, int]:
    """Return the count of calls, and the digest of all calls."""
    return context_of(kv).comm.calls.recorder.log.count, context_of(kv).comm.digest.value


def on_two_ranks(body: Callable[[Any], Any]) -> list[Any]:
    """Run ``body(kv)`` on both ranks, with keys "a" and "b"."""

    def rank() -> Any:
        with ncclkv.create("threads", timeout=10) as kv:
            kv.init(["a", "b"], [full(0), full(0)])
            return body(kv)

    return run_ranks(2, rank, timeout=stretched(10))
