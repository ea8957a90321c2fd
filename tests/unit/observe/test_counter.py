"""Metrics of known events, and of a store."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.engine.instrument import Launch
from ncclkv.observe.counter import Counter
from ncclkv.testing import run_ranks
from tests.harness.context import context_of


@pytest.fixture
def counter() -> Counter:
    return Counter(2, 4)


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("allreduce", 1.5),
        ("reduce", 1.0),
        ("reduce_scatter", 0.75),
        ("allgather", 0.75),
        ("broadcast", 1.0),
    ],
)
def test_bus_bandwidth_is_that_of_the_tests_of_nccl(
    counter: Counter, kind: str, factor: float
) -> None:
    for seq in (1, 2):
        counter.launched(Launch(seq, kind, "key 'w'", 1000, 250, 3))
        counter.waited(seq, 0.25)
    assert counter.metrics()["buckets"]["3"]["busbw_bytes_per_second"] is None
    for seq in (1, 2):
        counter.completed(seq, 0.5)
        counter.late(seq, 1, 0.125)
    counter.late(7, 1, 3.0)
    assert counter.metrics()["buckets"]["3"] == {
        "launches": 2,
        "completed": 2,
        "nbytes": 2000,
        "wire_bytes": 500,
        "seconds": 1.0,
        "waited_seconds": 0.5,
        "median_seconds": 0.5,
        "median_skew_seconds": 0.125,
        "busbw_bytes_per_second": 2000 * factor,
    }


def test_the_rank_that_is_last_most_often(counter: Counter) -> None:
    for seq, (rank, seconds) in enumerate([(3, 0.04), (3, 0.041), (3, 0.5), (1, 0.002)]):
        counter.late(seq, rank, seconds)
    last = counter.metrics()["last"]
    assert last["sums"] == 4
    assert [*last["ranks"]] == ["1", "3"]
    assert last["ranks"]["3"] == {
        "count": 3,
        "seconds": pytest.approx(0.581),
        "median_seconds": 0.041,
        "most_seconds": 0.5,
    }
    assert counter.metrics()["summary"] == [
        "rank 3 was last to 75 % of 4 sums, median 41 ms after the rank before",
        "rank 1 was last to 25 % of 4 sums, median 2 ms after the rank before",
    ]


def test_waits_by_the_rank_awaited_last(counter: Counter) -> None:
    counter.blocked("a barrier", [0, 1], 0.5)
    counter.blocked("a barrier", [1], 0.25)
    metrics = counter.metrics()
    assert metrics["waited_seconds"] == 0.75
    assert {rank: each["seconds"] for rank, each in metrics["awaited"].items()} == {
        "0": 0.5,
        "1": 0.75,
    }


def test_launches_that_never_complete_take_bounded_memory(counter: Counter) -> None:
    for seq in range(5000):
        counter.launched(Launch(seq, "allreduce", "", 8, 8))
    assert len(counter._in_flight) == 1000
    counter.completed(0, 1.0)
    counter.waited(0, 1.0)
    assert counter.metrics()["buckets"]["one-off"]["completed"] == 0


@pytest.fixture
def kv() -> Iterator[ncclkv.KVStore]:
    with ncclkv.create("local") as store:
        store.init("w", np.zeros(256, "f4"))
        yield store


def test_a_store_counts_from_the_first_call_on(kv: ncclkv.KVStore) -> None:
    kv.push("w", np.ones(256, "f4"))
    assert context_of(kv).engine.events.listeners == {}
    kv.metrics()
    kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
    for _ in range(2):
        kv.push("w", np.ones(256, "f4"))
        kv.pull("w")
    kv.allreduce(np.ones(8))
    metrics = kv.metrics()
    assert metrics == {**metrics, "rank": 0, "ranks": 1, "pushed_bytes": 2048, "pulled_bytes": 2048}
    assert metrics["verbs"]["push"]["calls"] == metrics["verbs"]["pull"]["calls"] == 2
    assert metrics["verbs"]["allreduce"]["calls"] == 1
    assert metrics["buckets"]["0"]["completed"] == 2
    assert metrics["buckets"]["one-off"]["nbytes"] == 64
    assert 0 < metrics["update_seconds"] < metrics["seconds"]
    assert json.loads(json.dumps(metrics)) == metrics


def test_another_thread_reads_while_the_store_counts(counter: Counter) -> None:
    """Read in a thread, with switches of threads as often as possible, as a scrape does."""
    errors: list[BaseException] = []
    ended = threading.Event()

    def reading() -> None:
        try:
            while not ended.is_set():
                counter.metrics()
        except BaseException as error:
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=reading)
    thread.start()
    try:
        for seq in range(3000):
            counter.launched(Launch(seq, "allreduce", "", 8, 8, seq))
            counter.completed(seq, 1.0)
            counter.late(seq, seq % 50, 1.0)
            counter.blocked("", [seq % 70], 1.0)
            counter.verb(f"verb{seq}", 1.0)
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(before)
    assert errors == []


def test_threads_find_the_rank_that_sleeps() -> None:
    def body() -> Any:
        with ncclkv.create("threads") as kv:
            kv.init("w", np.zeros(20_000, "f4"))
            kv.metrics()
            for _ in range(4):
                time.sleep(0.03 * (kv.rank == 1))
                kv.push("w", np.ones(20_000, "f4"))
                kv.wait()
            return kv.metrics()

    first, *_ = run_ranks(3, body)
    awaited = first["awaited"]
    assert awaited["1"]["seconds"] > 0.06, awaited
    assert first["waited_seconds"] >= awaited["1"]["seconds"]
