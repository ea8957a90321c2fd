"""A second storage beside the dense keys, added by a row and a class for each of its parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.engine.storage_table import STORAGES
from ncclkv.errors import NonFinite, NotSupported, SpecMismatch
from ncclkv.optimizer import SGD
from ncclkv.store import registration
from ncclkv.table.registry import DENSE, KeySpec
from ncclkv.testing import run_ranks
from tests.harness.context import context_of
from tests.unit.engine.listed_storage import NAME, ROW
from tests.unit.store.thread_ranks import on_rank

LISTED = ["listed0", "listed1"]
KEYS = ["a", LISTED[0], "b", LISTED[1]]
LENGTH = 100
PLACEMENTS = ["every_rank", "root", "sharded"]


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give keys with names of their own the storage of this test."""

    def spec(name: Any, *rest: Any) -> KeySpec:
        return KeySpec(name, *rest, storage=NAME if str(name).startswith(NAME) else DENSE)

    monkeypatch.setitem(STORAGES, NAME, ROW)
    monkeypatch.setattr(registration, "KeySpec", spec)


def store(**options: Any) -> Any:
    """Return a store with SGD for its dense keys; each value is 1."""
    kv = ncclkv.create("threads", **options)
    kv.init(KEYS, [np.ones(LENGTH, np.float32)] * len(KEYS))
    kv.set_optimizer(SGD(learning_rate=0.5))
    return kv


def full(number: float) -> np.ndarray:
    return np.full(LENGTH, number, np.float32)


def firsts(kv: Any, keys: list[str] = KEYS) -> list[float]:
    """Pull values of equal elements; return the element of each."""
    values = [np.unique(value) for value in kv.pull(keys)]
    assert all(value.size == 1 for value in values)
    return [float(value[0]) for value in values]


def on_ranks(body: Callable[[Any], Any], size: int = 3, **options: Any) -> Any:
    """Run a body on ranks that are threads; return its result, equal on all ranks."""

    def with_store() -> Any:
        with store(**options) as kv:
            return body(kv)

    results = run_ranks(size, with_store)
    assert results == results[:1] * size
    return results[0]


def test_each_key_has_a_bucket_of_its_own() -> None:
    with ncclkv.create("local") as kv:
        kv.init(KEYS, [full(1)] * 4)
        kv.push(KEYS, [full(2)] * 4)
        states = context_of(kv).engine.layout.states
        assert [list(state.bucket.entry_indices) for state in states] == [
            ["a", "b"],
            *map(list, zip(LISTED)),
        ]
        assert firsts(kv) == [2, 3, 2, 3]


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("size", [1, 3])
def test_sums_go_through_the_rule_of_the_storage(size: int, placement: str) -> None:
    def body(kv: Any) -> list[list[float]]:
        made = []
        for step in range(2):
            several = [full(kv.rank), full(step)]
            kv.push(KEYS, [full(1), several, several, full(1)])
            kv.push(LISTED[1], full(2))
            made.append(firsts(kv))
        return made

    a, rest = float(size), float(sum(range(size)))
    first = [1 - a / 2, 1 + rest, 1 - rest / 2, 1 + 3 * a]
    second = [1 - a, 1 + 2 * rest + a, 1 - rest - a / 2, 1 + 6 * a]
    assert on_ranks(body, size, update_on=placement) == [first, second]


def test_a_push_in_a_group_joins_the_arrays_of_a_key() -> None:
    def body(kv: Any) -> list[float]:
        with kv.group():
            kv.push(KEYS, [full(1)] * 4)
            kv.push(LISTED[0], full(kv.rank))
        return firsts(kv)

    assert on_ranks(body) == [-0.5, 1 + 3 + 3, -0.5, 4]


def interrupted(kv: Any) -> None:
    """Push all keys in a group that does not end."""
    with kv.group():
        kv.push(KEYS, [full(1)] * 4)
        raise RuntimeError("no more")


def test_a_group_that_raises_leaves_no_push() -> None:
    def body(kv: Any) -> list[float]:
        with pytest.raises(RuntimeError, match="no more"):
            interrupted(kv)
        return firsts(kv)

    assert on_ranks(body) == [1, 1, 1, 1]


def test_an_overlap_block_launches_its_buckets() -> None:
    def body(kv: Any) -> list[float]:
        with kv.overlap(KEYS):
            for key in KEYS[:: 1 if kv.rank else -1]:
                kv.push(key, full(1))
        return firsts(kv)

    assert on_ranks(body) == [-0.5, 4, -0.5, 4]


def test_missing_pushes_count_as_zeros() -> None:
    def body(kv: Any) -> list[float]:
        kv.push(KEYS[: 1 + kv.rank], [full(1)] * (1 + kv.rank))
        return firsts(kv)

    assert on_ranks(body, missing="zeros") == [-0.5, 3, 0.5, 1]


@pytest.mark.parametrize("op", ["sum", "avg"])
def test_ranks_that_push_no_more_send_nothing(op: str) -> None:
    def body() -> list[float]:
        with ncclkv.create("threads") as kv:
            kv.init(LISTED, [full(1)] * 2, op=op)
            with kv.uneven():
                for _ in range(1 + kv.rank):
                    kv.push(LISTED, [full(1), full(2)])
                    kv.pull(LISTED)
            return firsts(kv, LISTED)

    assert run_ranks(2, body) == [[1 + 3, 1 + 6] if op == "sum" else [1 + 2, 1 + 4]] * 2


def test_a_flush_with_nan_is_skipped() -> None:
    def body(kv: Any) -> list[float]:
        kv.push(KEYS, [full(1)] * 4)
        kv.pull(KEYS)
        kv.push(LISTED, [full(np.nan if kv.rank == 1 else 1), full(1)])
        with pytest.raises(NonFinite, match=r"key 'listed0' on rank 1"):
            kv.pull(KEYS)
        kv.push(LISTED[0], full(1))
        return firsts(kv)

    assert on_ranks(body, nonfinite="raise") == [-0.5, 7, -0.5, 4]


def test_a_function_as_updater_leaves_the_rule_of_the_storage() -> None:
    def body(kv: Any) -> list[float]:
        def update(key: Any, given: Any, stored: Any) -> None:
            stored -= given

        kv.set_updater(update)
        kv.push(KEYS, [full(1)] * 4)
        return firsts(kv)

    assert on_ranks(body) == [-2, 4, -2, 4]


def test_values_and_counts_come_back_from_a_checkpoint(tmp_path: Path) -> None:
    def body(kv: Any) -> list[float]:
        kv.push(KEYS, [full(1)] * 4)
        kv.save(tmp_path / "step")
        kv.push(KEYS, [full(1)] * 4)
        kv.load(tmp_path / "step")
        engine = context_of(kv).engine
        slot = engine.layout[LISTED[0]]
        return [*firsts(kv), engine.rule_of(slot).count(slot)]

    assert on_ranks(body) == [-0.5, 4, -0.5, 4, 1]


def test_pushes_of_the_storage_are_not_compressed() -> None:
    with store() as kv:
        key = next(key for key in KEYS if key.startswith(NAME))
        kv.set_gradient_compression({"type": "2bit"})
        assert kv.gradient_compression(key) is None
        with pytest.raises(NotSupported, match=f"the storage '{NAME}', whose pushes are not"):
            kv.set_gradient_compression({"type": "2bit"}, keys=key)


def test_a_view_of_a_gradient_is_refused() -> None:
    with store() as kv:
        with pytest.raises(NotSupported, match="keys of storage 'listed' have no array"):
            kv.grad_view(LISTED[0])
        kv.push(KEYS, [full(1)] * 4)
        assert firsts(kv) == [0.5, 2, 0.5, 2]


def test_a_storage_that_other_ranks_do_not_choose_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spec(name: Any, *rest: Any) -> KeySpec:
        return KeySpec(name, *rest, storage=NAME if on_rank() else DENSE)

    monkeypatch.setattr(registration, "KeySpec", spec)

    def body() -> None:
        with ncclkv.create("threads") as kv, pytest.raises(SpecMismatch, match="listed"):
            kv.init("a", full(1))

    run_ranks(2, body)
