"""Faults of a world: the other ranks hear of each, in time."""

from __future__ import annotations

import re

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import CommTimeout, KVStoreError, RankLost
from ncclkv.testing import Seeded, sleep, start_thread
from ncclkv.testing.faults import LoseMessages, Raise, Stop, Suspend

SEEDS = range(12)
TIMEOUT = 20.0


def body() -> float:
    with ncclkv.create("dist") as kv:
        kv.init("w", np.zeros(3))
        for _ in range(6):
            kv.push("w", np.ones(3))
            value = float(kv.pull("w")[0])
            sleep(1.0)
        return value


def point_of(seed: int) -> int:
    """Return a point of a rank in the first two thirds of its program."""
    world = Seeded(seed)
    world.run(3, body, TIMEOUT)
    return 1 + int(world.points / 3 * 0.6 * (seed + 1) / len(SEEDS))


def others(errors: dict[int, BaseException], rank: int) -> list[BaseException]:
    """Return the errors of the other ranks, each of which names the rank."""
    found = [error for each, error in errors.items() if each != rank]
    for error in found:
        assert isinstance(error, KVStoreError), error
        assert re.search(rf"\branks? (\d+, )*{rank}\b", str(error)), error
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_an_exception_at_a_point(seed: int) -> None:
    fault = Raise(1, point_of(seed), error=lambda: MemoryError("told to fail"))
    outcome = Seeded(seed, faults=[fault]).run(3, body, TIMEOUT)
    if 1 in outcome.errors:
        assert isinstance(outcome.errors[1], (MemoryError, KVStoreError))
        assert len(others(outcome.errors, 1)) == 2
        assert max(outcome.seconds.values()) < TIMEOUT
    else:
        assert outcome.results == dict.fromkeys(range(3), 3.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_that_stops_for_less_than_the_timeout_is_no_error(seed: int) -> None:
    outcome = Seeded(seed, faults=[Stop(1, point_of(seed), TIMEOUT / 2)]).run(3, body, TIMEOUT)
    assert not outcome.errors
    assert outcome.results == dict.fromkeys(range(3), 3.0)
    assert min(outcome.seconds.values()) > TIMEOUT / 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_machine_that_is_suspended_is_no_error(seed: int) -> None:
    fault = Suspend(3 * point_of(seed), TIMEOUT / 2)
    outcome = Seeded(seed, faults=[fault]).run(3, body, TIMEOUT)
    assert not outcome.errors
    assert outcome.results == dict.fromkeys(range(3), 3.0)
    assert all(seconds > TIMEOUT / 2 for seconds in outcome.seconds.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_that_stops_for_longer_is_named(seed: int) -> None:
    outcome = Seeded(seed, faults=[Stop(1, point_of(seed), 5 * TIMEOUT)]).run(3, body, TIMEOUT)
    found = others(outcome.errors, 1)
    assert len(found) == 2
    assert any(isinstance(each, CommTimeout) for each in found)
    assert max(outcome.seconds[rank] for rank in (0, 2)) < 2 * TIMEOUT
    assert isinstance(outcome.errors[1], RankLost)


@pytest.mark.parametrize("seed", SEEDS)
def test_lost_messages_are_no_wrong_sums(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", "messages")
    outcome = Seeded(seed, faults=[LoseMessages(0, 1, 2.0)]).run(2, body, TIMEOUT)
    assert not outcome.results
    for error in outcome.errors.values():
        assert isinstance(error, (CommTimeout, RankLost)), error


@pytest.mark.parametrize("point", range(1, 12))
def test_a_rank_that_stops_at_the_begin_of_a_wait_is_woken(point: int) -> None:
    """Let what it waits for happen meanwhile."""

    def body() -> None:
        thread = start_thread(lambda: None)
        thread.join()

    for seed in range(5):
        assert not Seeded(seed, faults=[Stop(0, point, 5.0)]).run(2, body, TIMEOUT).errors
