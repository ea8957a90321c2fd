"""Identities of threads in a world: that of an ended thread is perhaps given to a new one."""

from __future__ import annotations

from ncclkv import concurrency
from ncclkv.testing import Seeded, start_thread

SEEDS = range(20)


def identities() -> list[int]:
    """Return the identities of this rank and of threads, each of which ends before the next."""
    found = [concurrency.get_ident()]
    for _ in range(4):
        start_thread(lambda: found.append(concurrency.get_ident())).join()
    return found


def test_a_thread_takes_the_identity_of_an_ended_one_in_some_worlds() -> None:
    counts = {len(set(Seeded(seed).run(1, identities).results[0])) for seed in SEEDS}
    assert {2, 5} <= counts <= {2, 3, 4, 5}


def test_an_identity_of_an_ended_thread_may_be_that_of_another_rank() -> None:
    results = [Seeded(seed).run(2, identities).results for seed in SEEDS]
    assert any(set(each[0]) & set(each[1]) for each in results)


def test_threads_that_run_have_different_identities() -> None:
    def body() -> None:
        lock, found = concurrency.Lock(), list[int]()
        lock.acquire()

        def note() -> None:
            found.append(concurrency.get_ident())
            with lock:
                pass

        threads = [start_thread(note) for _ in range(3)]
        concurrency.sleep(1.0)
        lock.release()
        for each in threads:
            each.join()
        assert len({concurrency.get_ident(), *found}) == 4

    for seed in SEEDS:
        assert not Seeded(seed).run(1, body).errors


def test_a_seed_gives_the_same_threads_the_same_identity() -> None:
    def shape(seed: int) -> list[int]:
        found = Seeded(seed).run(1, identities).results[0]
        return [found.index(each) for each in found]

    assert [shape(seed) for seed in SEEDS] == [shape(seed) for seed in SEEDS]
