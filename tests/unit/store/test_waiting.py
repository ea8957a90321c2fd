"""Waits of the same keys: their buckets are found once, for these very keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import KeyNotInitialized, KeyTypeMismatch

VALUE = np.ones(2)


@pytest.fixture
def kv() -> Any:
    with ncclkv.create("local") as made:
        made.init([0, 1], [VALUE, VALUE])
        yield made


@pytest.mark.parametrize("key", [1, [1, 0], (1, 0)])
def test_repeated_waits_settle_their_keys(kv: Any, key: Any) -> None:
    for step in range(4):
        kv.push(1, step * VALUE)
        kv.wait(key)
        assert (kv.value(1) == step).all()


@pytest.mark.parametrize("key", [1, [0, 1]])
def test_equal_objects_that_are_no_keys_are_refused(kv: Any, key: Any) -> None:
    kv.push(1, VALUE)
    for _ in range(2):
        kv.wait(key)
        kv.wait(np.int64(1) if key == 1 else [np.int64(0), 1])
    other = True if key == 1 else [False, True]
    with pytest.raises(KeyTypeMismatch, match="bool"):
        kv.wait(other)
    with pytest.raises(KeyTypeMismatch, match="float"):
        kv.wait(1.0 if key == 1 else [0.0, 1.0])
    with pytest.raises(KeyNotInitialized):
        kv.wait(2 if key == 1 else [0, 2])


def test_keys_that_get_their_buckets_later_are_found(kv: Any) -> None:
    kv.push([0, 1], [VALUE, VALUE])
    kv.init(2, VALUE)
    kv.wait([0, 2])  # key 2 has no bucket yet
    kv.push(2, 7 * VALUE)
    kv.wait([0, 2])
    assert (kv.value(2) == 7).all()
