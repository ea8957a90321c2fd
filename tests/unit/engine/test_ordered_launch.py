"""Overlap blocks: the order of launches, and which thread makes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncclkv
from ncclkv.engine.instrument import Instrument, Launch
from ncclkv.testing import run_ranks
from tests.harness.context import context_of
from tests.harness.extent import examples

KEYS = [f"k{number}" for number in range(10)]


class Launches(Instrument):
    """Records the labels of launches, and the threads that make them."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.threads: list[str] = []

    def launched(self, launch: Launch) -> None:
        self.labels.append(launch.label)
        self.threads.append(threading.current_thread().name)


def in_thread(call: Callable[[], Any]) -> None:
    """Call a function in another thread, to its end."""
    thread = threading.Thread(target=call, name="other")
    thread.start()
    thread.join()


@pytest.fixture
def store() -> Iterator[tuple[ncclkv.KVStore, Launches]]:
    """A store with two keys in each bucket, and the log of its launches."""
    with ncclkv.create("local", bucket_bytes=512) as kv:
        kv.init(KEYS, [np.zeros(32)] * len(KEYS))
        launches = Launches()
        kv.add_instrument(launches)
        yield kv, launches


def test_a_bucket_is_launched_at_its_turn(store: tuple[ncclkv.KVStore, Launches]) -> None:
    kv, launches = store
    counts = []
    with kv.overlap():
        for number in (2, 3, 1, 9, 0, 5, 4, 8, 7, 6):
            kv.push(KEYS[number], np.ones(32))
            counts.append(len(launches.labels))
    # Bucket 0 is full with the fifth push, and bucket 1 has waited for it.
    assert counts == [0, 0, 0, 0, 2, 2, 3, 3, 3, 5]
    assert set(launches.threads) == {"MainThread"}


@settings(deadline=None, max_examples=examples(50))
@given(order=st.permutations(KEYS), others=st.sets(st.sampled_from(KEYS)))
def test_the_order_of_launches_is_one(order: list[str], others: set[str]) -> None:
    with ncclkv.create("local", bucket_bytes=512) as kv:
        kv.init(KEYS, [np.zeros(32)] * len(KEYS))
        launches = Launches()
        kv.add_instrument(launches)
        with kv.overlap():
            for key in order:
                push = partial(kv.push, key, np.full(32, float(KEYS.index(key))))
                in_thread(push) if key in others else push()
        with kv.overlap():
            kv.push(KEYS, [np.full(32, float(number)) for number in range(len(KEYS))])
        assert launches.labels[:5] == launches.labels[5:]
        assert len(set(launches.labels)) == 5
        for number, key in enumerate(KEYS):
            assert np.array_equal(kv.pull(key), np.full(32, number))


def test_another_thread_launches_if_the_communicator_allows(
    store: tuple[ncclkv.KVStore, Launches],
) -> None:
    kv, launches = store
    with kv.overlap():
        in_thread(lambda: kv.push(KEYS[:2], [np.ones(32)] * 2))
        assert launches.threads == ["other"]
        kv.push(KEYS[2:], [np.ones(32)] * 8)


def test_another_thread_launches_nothing_if_one_thread_may_use_mpi(
    store: tuple[ncclkv.KVStore, Launches],
) -> None:
    kv, launches = store
    context_of(kv).comm.thread_multiple = False
    with kv.overlap():
        in_thread(lambda: kv.push(KEYS[:4], [np.ones(32)] * 4))
        assert launches.threads == []
        kv.push(KEYS[9], np.ones(32))
        assert launches.threads == ["MainThread"] * 2
        in_thread(lambda: kv.push(KEYS[4:9], [np.ones(32)] * 5))
        assert len(launches.threads) == 2
    assert launches.threads == ["MainThread"] * 5
    assert np.array_equal(kv.pull(KEYS[8]), np.ones(32))


def test_a_push_advances_collectives_in_flight() -> None:
    arrived, pushed = threading.Barrier(2), threading.Barrier(2)

    def body() -> list[bool]:
        with ncclkv.create("threads", bucket_bytes=0) as kv:
            kv.init(KEYS[:3], [np.zeros(5)] * 3)
            state = context_of(kv).engine.layout[KEYS[0]].state
            done = []
            with kv.overlap(KEYS[:3]):
                kv.push(KEYS[0], np.ones(5))
                for key in KEYS[1:3]:
                    arrived.wait(20)
                    kv.push(key, np.ones(5))
                    pushed.wait(20)
                done = [work.finished for work in state.works]  # type: ignore[attr-defined]
            return done

    assert run_ranks(2, body) == [[True], [True]]


def test_a_wait_in_another_store_advances_what_another_thread_has_launched() -> None:
    pushed, ended = threading.Event(), threading.Event()

    def body() -> None:
        with ncclkv.create("threads", timeout=20) as one, ncclkv.create("threads") as two:
            for kv in one, two:
                kv.init("a", np.zeros(100_000))
            own = threading.Event()

            def push() -> None:
                one.push("a", np.ones(100_000))
                own.set()
                ended.wait(20)  # else another thread might get the number of this thread

            with one.overlap():
                if one.rank:  # after rank 0, which must still receive this push
                    pushed.wait(20)
                threading.Thread(target=push).start()
                own.wait(20)
                pushed.set()
            # Ranks wait in other stores: a wait of rank 0 must advance what the others wait for.
            waits = [one.wait, lambda: two.pushpull("a", np.ones(100_000), np.zeros(100_000))]
            for wait in waits[:: 1 if one.rank else -1]:
                wait()
            assert np.array_equal(one.pull("a"), np.full(100_000, 3.0))

    try:
        run_ranks(3, body)
    finally:
        ended.set()
