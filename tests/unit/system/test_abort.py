"""Reasons of failures, and which of them are the failures of other ranks."""

from __future__ import annotations

import pytest

from ncclkv.errors import OrderMismatch, RankDied, RankLost
from ncclkv.system.abort import follows, reason_of

LOST = RankLost("rank 0 of 2: rank 1 left\nmore")


def chained(error: Exception, cause: Exception, *, shown: bool = True) -> Exception:
    """Return an error that was raised while another was handled."""
    error.__context__ = cause
    error.__suppress_context__ = not shown
    return error


@pytest.mark.parametrize(
    ("error", "reason", "expected"),
    [
        (LOST, "RankLost: rank 0 of 2: rank 1 left", True),
        (RankDied(""), "RankDied", True),
        (ValueError("mine"), "ValueError: mine", False),
        (
            chained(RuntimeError("stopped"), chained(KeyError("w"), LOST)),
            "RuntimeError: stopped, after RankLost: rank 0 of 2: rank 1 left",
            True,
        ),
        (chained(RuntimeError("stopped"), LOST, shown=False), "RuntimeError: stopped", False),
        (chained(RuntimeError("stopped"), ValueError("mine")), "RuntimeError: stopped", False),
        (
            OrderMismatch("rank 1 left with RankLost"),
            "OrderMismatch: rank 1 left with RankLost",
            False,
        ),
    ],
)
def test_reasons_of_errors(error: Exception, reason: str, expected: bool) -> None:
    assert reason_of(error) == reason
    assert follows(reason) == expected


def test_a_cycle_of_errors_ends() -> None:
    error, other = ValueError("one"), ValueError("two")
    error.__context__, other.__context__ = other, error
    assert reason_of(error) == "ValueError: one"


def test_a_farewell_after_another_failure_follows_it() -> None:
    farewell = "its process ended without closing the store, after {}: rank 1 left"
    assert follows(farewell.format("RankLost"))
    assert not follows(farewell.format("OrderMismatch"))
