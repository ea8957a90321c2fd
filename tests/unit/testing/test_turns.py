"""Turns: the clock, pauses that leap, and worlds that cannot go on."""

from __future__ import annotations

import re

import pytest

import ncclkv
from ncclkv import concurrency
from ncclkv.errors import CommTimeout
from ncclkv.testing import NoProgress, Seeded, run_ranks, sleep

SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_sleeps_by_the_worlds_clock(seed: int) -> None:
    ended: list[int] = []

    def body() -> float:
        rank = ncclkv.comm.world().rank
        begin = concurrency.monotonic()
        sleep(100.0 * (3 - rank))
        ended.append(rank)
        return concurrency.monotonic() - begin

    world = Seeded(seed)
    lengths = run_ranks(3, body, world=world)
    assert ended == [2, 1, 0]
    assert [round(each, -1) for each in lengths] == [300.0, 200.0, 100.0]
    assert 300.0 <= world.seconds < 310.0


def test_two_reads_of_the_clock_differ() -> None:
    def body() -> int:
        begin = concurrency.monotonic_ns()
        return concurrency.monotonic_ns() - begin

    assert Seeded(0).run(1, body).results[0] >= 1000


def test_a_timeout_of_minutes_takes_few_points() -> None:
    def body() -> None:
        with ncclkv.create("dist", timeout=300) as kv:
            sleep(400.0 * kv.rank)
            kv.barrier()

    for seed in range(8):
        world = Seeded(seed)
        with pytest.raises(CommTimeout, match=r"waited 30\d\.\d s \(timeout 300 s\)"):
            run_ranks(2, body, timeout=300, world=world)
        assert world.points < 200_000
        assert world.seconds >= 300.0


def test_a_deadlock_is_seen_at_once_with_the_stack_of_each_rank() -> None:
    locks: list[concurrency.Lock] = []

    def take(first: int, second: int) -> None:
        with locks[first]:
            sleep(1.0)
            with locks[second]:
                pass

    def body() -> None:
        rank = ncclkv.comm.world().rank
        if not locks:
            locks.extend(concurrency.Lock() for _ in range(2))
        take(rank, 1 - rank)

    world = Seeded(3)
    with pytest.raises(NoProgress) as caught:
        world.run(2, body)
    text = str(caught.value)
    assert re.match(r"seed 3: each rank waits for another at [1-9]\d*\.\d{6} s\n", text)
    for rank in (0, 1):
        assert f"rank {rank}, at 'a lock':" in text
    assert text.count("in take\n") == 2


def test_ranks_that_go_in_circles_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncclkv.testing.turns._MAX_POINTS", 1000)

    def body() -> None:
        while True:
            concurrency.sched_yield()

    with pytest.raises(NoProgress, match="no rank has ended after 1000 points"):
        Seeded(0).run(2, body)


def test_all_ranks_get_turns_in_some_world() -> None:
    def body(order: list[int]) -> None:
        rank = ncclkv.comm.world().rank
        for _ in range(20):
            order.append(rank)
            concurrency.point("a step")

    orders = set()
    for seed in SEEDS:
        order: list[int] = []
        run_ranks(2, body, order, world=Seeded(seed))
        assert sorted(order) == [0] * 20 + [1] * 20
        orders.add(tuple(order))
    assert len(orders) > 6
