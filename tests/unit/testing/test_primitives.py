"""The locks, conditions and events of a world, in the hands of several threads."""

from __future__ import annotations

import threading
import time

import pytest

import ncclkv
from ncclkv import concurrency
from ncclkv.errors import UsageError
from ncclkv.testing import Seeded, run_ranks, sleep, start_thread

SEEDS = range(30)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", ["Lock", "RLock"])
def test_one_actor_holds_a_lock(make: str, seed: int) -> None:
    def body() -> int:
        lock, inside, most = getattr(concurrency, make)(), [0], [0]

        def work() -> None:
            for _ in range(3):
                with lock:
                    inside[0] += 1
                    concurrency.point("inside")
                    most[0] = max(most[0], inside[0])
                    inside[0] -= 1

        for thread in [start_thread(work) for _ in range(3)]:
            thread.join()
        return most[0]

    assert run_ranks(1, body, world=Seeded(seed)) == [1]


def test_a_lock_that_is_held_is_refused_or_awaited_for_its_time() -> None:
    def body() -> tuple[bool, bool, bool, bool]:
        lock = concurrency.Lock()
        lock.acquire()
        at_once = lock.acquire(blocking=False)
        begin = concurrency.monotonic()
        after = lock.acquire(timeout=2.0)
        waited = 2.0 <= concurrency.monotonic() - begin < 5.0
        lock.release()
        return at_once, after, waited, lock.locked()

    assert run_ranks(1, body, world=Seeded(1)) == [(False, False, True, False)]


def test_a_reentrant_lock_is_free_after_as_many_releases() -> None:
    def body() -> None:
        lock = concurrency.RLock()
        with lock, lock:
            pass
        with pytest.raises(RuntimeError, match="release of a lock"):
            lock.release()

    run_ranks(1, body, world=Seeded(1))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_wake_up_is_lost(seed: int) -> None:
    def body() -> list[int]:
        ready = concurrency.Condition()
        queue: list[int] = []
        taken: list[int] = []

        def take() -> None:
            for _ in range(4):
                with ready:
                    ready.wait_for(lambda: bool(queue))
                    taken.append(queue.pop(0))

        thread = start_thread(take)
        for number in range(4):
            with ready:
                queue.append(number)
                ready.notify()
        thread.join()
        return taken

    assert run_ranks(1, body, world=Seeded(seed)) == [[0, 1, 2, 3]]


def test_a_condition_waits_for_its_time() -> None:
    def body() -> tuple[bool, bool, bool]:
        ready = concurrency.Condition()
        begin = concurrency.monotonic()
        with ready:
            notified = ready.wait(3.0)
            held = not ready.wait_for(lambda: False, 2.0)
        return notified, held, concurrency.monotonic() - begin >= 5.0

    assert run_ranks(1, body, world=Seeded(2)) == [(False, True, True)]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_event_happens_once_for_all(seed: int) -> None:
    def body() -> list[bool]:
        event, seen = concurrency.Event(), []

        def wait() -> None:
            seen.append(event.wait())

        threads = [start_thread(wait) for _ in range(3)]
        before = event.is_set() or event.wait(0.5)
        event.set()
        for thread in threads:
            thread.join()
        event.clear()
        return [before, *seen, event.is_set()]

    assert run_ranks(1, body, world=Seeded(seed)) == [[False, True, True, True, False]]


def test_a_thread_that_is_not_of_the_world_is_refused_by_name() -> None:
    def body() -> str:
        lock, caught = concurrency.Lock(), []

        def take() -> None:
            try:
                lock.acquire()
            except UsageError as error:
                caught.append(str(error))

        stranger = threading.Thread(target=take, name="loader")
        stranger.start()
        stranger.join()
        return caught[0]

    (text,) = run_ranks(1, body, world=Seeded(0))
    assert text == (
        "loader is not a thread of the seeded world, and cannot take turns with its ranks; start "
        "it by ncclkv.testing.start_thread"
    )


def test_a_thread_that_is_not_of_the_world_reads_the_real_clock() -> None:
    def body() -> float:
        seen: list[float] = []
        stranger = threading.Thread(target=lambda: seen.append(concurrency.monotonic()))
        stranger.start()
        stranger.join()
        return seen[0]

    begin = time.monotonic()
    (seen,) = run_ranks(1, body, world=Seeded(0))
    assert begin <= seen <= time.monotonic()


def test_what_outlives_its_world_is_free() -> None:
    lock, condition, store = run_ranks(
        1,
        lambda: (concurrency.RLock(), concurrency.Condition(), ncclkv.create("dist")),
        world=Seeded(0),
    )[0]
    with lock, condition:
        condition.notify_all()
    del store


def test_the_join_of_a_thread_that_sleeps_ends_after_its_time() -> None:
    def body() -> tuple[bool, bool]:
        thread = start_thread(sleep, 10.0)
        thread.join(1.0)
        early = thread.is_alive()
        thread.join()
        return early, thread.is_alive()

    assert run_ranks(1, body, world=Seeded(0)) == [(True, False)]
