"""Differences of clocks, from exchanges with known clocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest

from ncclkv.observe.clocks import Visit, offsets

AHEAD = {"a": 0.0, "b": 100.0, "c": -3.0}
"""Seconds that each clock is ahead of the true time."""

WALLS = {clock: 1000.0 - ahead for clock, ahead in AHEAD.items()}


def exchange(random: Random, time: float, drift: float = 0.0, late: str = "") -> list[Visit]:
    """Return an allreduce of two ranks a machine, which takes up to 2 ms."""
    ranks = [clock for clock in AHEAD for _ in range(2)]
    enters = [time + 1e-3 * random.random() + 0.05 * (clock == late) for clock in ranks]
    leave = [max(enters) + 1e-3 * random.random() for _ in ranks]

    def own(clock: str, true: float) -> float:
        return true + AHEAD[clock] + (drift * true if clock == "b" else 0.0)

    return [
        Visit(clock, own(clock, enter), own(clock, end))
        for clock, enter, end in zip(ranks, enters, leave, strict=True)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_the_difference_lies_within_the_error(seed: int) -> None:
    random = Random(seed)
    found = offsets([exchange(random, 0.1 * step) for step in range(20)], "a", WALLS)
    assert found["a"].at(7.0) == found["a"].error == 0.0
    for clock in "bc":
        assert abs(found[clock].at(1.0) - AHEAD[clock]) <= found[clock].error < 1.5e-3


def test_a_rank_that_is_always_late_does_not_shift_its_clock_past_the_error() -> None:
    random = Random(0)
    found = offsets([exchange(random, 0.1 * step, late="b") for step in range(20)], "a", WALLS)
    assert abs(found["b"].at(1.0) - AHEAD["b"]) <= found["b"].error


def test_drift_is_a_line_between_begin_and_end() -> None:
    random, drift = Random(1), 1e-4
    found = offsets([exchange(random, 1.0 * step, drift) for step in range(400)], "a", WALLS)
    for true in (0.0, 200.0, 400.0):
        ahead = AHEAD["b"] + drift * true
        assert abs(found["b"].at(true + ahead) - ahead) < 10e-3, true
    assert abs(found["c"].at(200.0) - AHEAD["c"]) < 1.5e-3


def test_a_root_gives_one_bound_by_each_kind_of_collective() -> None:
    """Compare a reduce to the root and a broadcast of it, which bound from two sides."""
    reduce = [Visit("a", 1.0, 1.002), Visit("b", 101.001, None)]
    broadcast = [Visit("a", 2.0, None), Visit("b", None, 102.001)]
    (found,) = (offsets([reduce, broadcast], "a", {"a": 0.0, "b": 0.0})[each] for each in "b")
    assert abs(found.at(0.0) - 100.0) <= found.error < 2e-3
    assert math.isinf(offsets([reduce], "a", WALLS)["b"].error)


@pytest.mark.parametrize("exchanges", [[], [[Visit("b", 1.0, 2.0)]]])
def test_without_a_common_exchange_the_wall_clock_counts(exchanges: Sequence[list[Visit]]) -> None:
    found = offsets(exchanges, "a", WALLS)
    assert math.isinf(found["b"].error)
    assert found["b"].at(5.0) == 100.0


def test_the_bounds_of_one_exchange_are_those_of_the_closest_ranks() -> None:
    visits = [
        Visit("a", 1.000, 1.010),
        Visit("a", 1.001, 1.020),
        Visit("b", 101.002, 101.012),
        Visit("b", 101.003, 101.030),
    ]
    found = offsets([visits], "a", WALLS)["b"]
    low, high = 101.003 - 1.010, 101.012 - 1.001
    assert found.at(50.0) == pytest.approx((low + high) / 2)
    assert found.error == pytest.approx((high - low) / 2)
