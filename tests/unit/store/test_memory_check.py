"""All ranks refuse keys that do not fit into the machine's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import OutOfMemory, UsageError
from ncclkv.store import memory_check
from ncclkv.system.memory_left import MemoryLeft
from ncclkv.testing import run_ranks

RANKS = 3
BIG = np.zeros(1000, np.float64)
NBYTES = 8192
"""Bytes of `BIG` in its bucket."""


class Machine:
    """The machine's free memory, as each read finds it."""

    def __init__(self, patch: pytest.MonkeyPatch, *left: int | None) -> None:
        self.left = list(left)
        self.looks = 0
        patch.setattr(memory_check, "memory_left", self.memory_left)
        patch.setattr(memory_check, "CHECK_BYTES", 8000)

    def memory_left(self) -> MemoryLeft | None:
        self.looks += 1
        nbytes = self.left.pop() if len(self.left) > 1 else self.left[0]
        return None if nbytes is None else MemoryLeft(nbytes, "a box")


def refused(kv: Any, key: Any = "w", value: Any = BIG) -> str:
    with pytest.raises(OutOfMemory) as caught:
        kv.init(key, value)
    assert isinstance(caught.value, UsageError)
    assert isinstance(caught.value, MemoryError)
    return str(caught.value)


def test_keys_that_fit_to_the_byte_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 2 * NBYTES - 1)
    with ncclkv.create("local") as kv:
        assert refused(kv) == (
            "rank 0 of 1: init: 1 new keys of 8,192 bytes, with gradients and weights, do not fit "
            "on rank 0: on its node they need 16,384 bytes (8,192 for the gradients of 1 ranks, "
            "8,192 for the weights of each rank), and 16,383 are left by a box; give the node more "
            "memory, or fewer ranks"
        )
        assert kv.keys() == []
        machine.left = [2 * NBYTES]
        kv.init("w", BIG)
        kv.push("w", BIG + 1)
        assert (kv.pull("w") == 1).all()


def test_small_keys_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 0)
    with ncclkv.create("local") as kv:
        for key in range(10):
            kv.init(key, np.zeros(99))
        assert machine.looks == 0
        assert "8,192" not in refused(kv, 10, np.zeros(99))
        assert machine.looks == 1
        assert kv.keys() == list(range(10))
        kv.init(10, np.zeros(99))


def test_with_unknown_free_memory_all_keys_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, None)
    with ncclkv.create("local") as kv:
        kv.init("w", BIG)
    assert machine.looks == 1


def test_earlier_keys_without_a_bucket_still_need_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 2 * NBYTES)
    with ncclkv.create("local") as kv:
        kv.init("a", BIG)
        text = refused(kv, "b")
        assert "need 24,384 bytes (8,192 for the gradients of 1 ranks, 16,192 for" in text
        assert "earlier keys without a bucket included" in text
        kv.push("a", BIG)
        kv.init("b", BIG)
    assert machine.looks == 3


@pytest.mark.parametrize(
    ("options", "way", "needed", "words"),
    [
        ({}, "files", 4 * NBYTES, "24,576 for the gradients of 3 ranks, 8,192 for shared weights"),
        ({}, "halves", 6 * NBYTES, "24,576 for the weights of each rank"),
        ({}, "messages", 6 * NBYTES, "24,576 for the weights of each rank"),
        ({"update_on": "root"}, "files", 6 * NBYTES, "24,576 for the weights of each rank"),
    ],
)
def test_the_need_of_all_ranks_of_a_node_counts(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], way: str, needed: int, words: str
) -> None:
    monkeypatch.setattr(memory_check, "SHARED_FROM_BYTES", NBYTES)
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", way)
    machine = Machine(monkeypatch, needed - 1)

    def refuse() -> str:
        with ncclkv.create("threads", **options) as kv:
            return refused(kv)

    for rank, text in enumerate(run_ranks(RANKS, refuse)):
        assert text.startswith(f"rank {rank} of 3: init: 1 new keys of 8,192 bytes")
        assert "do not fit on rank 0: on its node they need " in text
        assert f"need {needed:,} bytes" in text
        assert words in text
    machine.left = [needed]

    def take() -> None:
        with ncclkv.create("threads", **options) as kv:
            kv.init("w", BIG)

    run_ranks(RANKS, take)


def test_small_buckets_need_weights_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, 6 * NBYTES - 1)

    def body() -> str:
        with ncclkv.create("threads") as kv:
            return refused(kv)

    for text in run_ranks(RANKS, body):
        assert "need 49,152 bytes" in text
        assert "24,576 for the weights of each rank" in text


def test_a_function_as_updater_needs_weights_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, 4 * NBYTES)

    def body() -> str:
        with ncclkv.create("threads") as kv:
            kv.set_updater(lambda key, given, stored: None)
            return refused(kv)

    for text in run_ranks(RANKS, body):
        assert "24,576 for the weights of each rank" in text


def test_too_little_memory_on_one_rank_is_refused_by_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plenty = 1 << 40
    machine = Machine(monkeypatch, plenty, plenty, 5)

    def body() -> str:
        with ncclkv.create("threads") as kv:
            text = refused(kv)
            assert kv.keys() == []
            kv.init("w", BIG)
            kv.push("w", BIG + kv.rank + 1)
            assert (kv.pull("w") == 6).all()
            return text

    texts = run_ranks(RANKS, body)
    assert all("and 5 are left by a box" in text for text in texts)
    assert machine.looks == 2 * RANKS
