"""Backoff: polls, pauses and deadline."""

from __future__ import annotations

import time

import pytest

from ncclkv import concurrency
from ncclkv.comm import backoff
from ncclkv.comm.backoff import Backoff, pause


def test_the_first_poll_is_immediate() -> None:
    pauses: list[int] = []
    assert list(Backoff(0.0, pauses.append)) == [0.0]
    assert not pauses


def test_a_poll_follows_the_pause_that_passes_the_limit() -> None:
    assert [round(waited, 1) for waited in Backoff(0.05, lambda attempt: time.sleep(0.1))] == [
        0.0,
        0.1,
    ]


def test_attempts_count_from_one_and_the_time_goes_on() -> None:
    attempts: list[int] = []

    def sleep(attempt: int) -> None:
        attempts.append(attempt)
        time.sleep(0.01)

    waited = list(Backoff(0.05, sleep))
    assert attempts == list(range(1, len(waited)))
    assert waited == sorted(waited)
    assert waited[-2] < 0.05 <= waited[-1]


def test_a_poll_that_succeeds_ends_the_wait_without_a_pause() -> None:
    pauses: list[int] = []
    for _ in Backoff(pause=pauses.append):
        break
    assert not pauses


def test_pauses_yield_first_and_then_sleep_longer_up_to_a_millisecond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr(concurrency, "sleep", sleeps.append)
    for attempt in range(1, backoff.YIELDS + 1):
        pause(attempt)
    assert not sleeps
    for attempt in (51, 50 + 64, 50 + 128, 10_000):
        pause(attempt)
    assert sleeps == [20e-6, 40e-6, 80e-6, 1e-3]
    pause(50 + 8, 8)
    assert sleeps[-1] == 40e-6
