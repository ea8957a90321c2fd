"""Works in flight of a bucket, and their measured times."""

from __future__ import annotations

import pytest

from ncclkv import concurrency
from ncclkv.comm.types import DoneWork
from ncclkv.engine.in_flight import InFlight


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(concurrency, "perf_counter", made)
    return made


class Streamed(DoneWork):
    """A work whose wait does not block the host."""

    blocks = False


class Failing(DoneWork):
    """A work whose wait fails."""

    def wait(self, timeout: float | None = None) -> None:
        raise TimeoutError


def took(bucket: InFlight, clock: Clock, seconds: float) -> None:
    """Launch a work that completes after so many seconds."""
    bucket.add(DoneWork(), clock.now)
    clock.now += seconds
    bucket.complete()


def test_time_is_the_median_of_the_last_times(clock: Clock) -> None:
    bucket = InFlight()
    assert bucket.seconds is None
    for _ in range(9):
        took(bucket, clock, 64.0)
    for seconds in (1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 5.0):
        took(bucket, clock, seconds)
    assert bucket.seconds == 5.0
    for _ in range(5):
        took(bucket, clock, 0.5)
    assert bucket.seconds == 0.5


def test_works_are_kept_until_complete(clock: Clock) -> None:
    bucket = InFlight()
    bucket.complete()
    assert not bucket.works
    bucket.add(DoneWork())
    assert bucket.works
    bucket.complete()
    assert not bucket.works
    assert bucket.seconds is None


def test_waits_that_do_not_block_the_host_give_no_time(clock: Clock) -> None:
    bucket = InFlight()
    bucket.add(Streamed(), clock.now)
    clock.now += 1
    bucket.complete()
    assert bucket.seconds is None


def test_dropped_and_failed_works_give_no_time(clock: Clock) -> None:
    bucket = InFlight()
    bucket.add(DoneWork(), clock.now)
    bucket.abandon()
    assert not bucket.works
    bucket.add(Failing(), clock.now)
    with pytest.raises(TimeoutError):
        bucket.complete()
    assert bucket.works
    assert bucket.seconds is None
