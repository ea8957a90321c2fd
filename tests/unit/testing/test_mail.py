"""Messages of a world: late, in the order of each pair, and lost to nobody."""

from __future__ import annotations

import numpy as np
import pytest

import ncclkv
from ncclkv import concurrency
from ncclkv.errors import RankLost
from ncclkv.testing import Seeded, run_ranks

SEEDS = range(40)


@pytest.fixture(autouse=True)
def without_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", "messages")


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_arrive_in_the_order_of_sending(seed: int) -> None:
    def body() -> list[float]:
        with ncclkv.create("dist") as kv:
            return [kv.allreduce(float(kv.rank + number)) for number in range(6)]

    expected = [3.0 + 3 * number for number in range(6)]
    assert run_ranks(3, body, world=Seeded(seed)) == [expected] * 3


def test_a_message_takes_time_in_some_worlds() -> None:
    def body() -> float:
        with ncclkv.create("dist") as kv:
            begin = concurrency.monotonic()
            for _ in range(10):
                kv.allreduce(np.ones(3))
            return concurrency.monotonic() - begin

    lengths = [run_ranks(2, body, world=Seeded(seed))[0] for seed in SEEDS]
    assert min(lengths) < 0.01
    assert max(lengths) > 0.3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_farewell_follows_the_messages_before_it(seed: int) -> None:
    def body() -> float:
        kv = ncclkv.create("dist")
        found = kv.allreduce(1.0)
        if kv.rank == 1:
            raise ValueError("told to leave")
        assert found == 2.0
        kv.barrier()
        return found

    outcome = Seeded(seed).run(2, body)
    assert isinstance(outcome.errors[0], RankLost), outcome.errors
    assert "farewell: ValueError: told to leave" in str(outcome.errors[0])
