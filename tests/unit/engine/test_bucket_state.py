"""Pushes that a bucket drops, and the time of its collectives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import ncclkv
from ncclkv.comm.types import DoneWork
from ncclkv.engine.bucket_state import BucketState
from tests.harness.context import context_of


@pytest.fixture
def state() -> Iterator[BucketState]:
    with ncclkv.create("local") as kv:
        kv.init(["a", "b"], [np.zeros(2), np.zeros(2)])
        engine = context_of(kv).engine
        state = engine.layout["a"].state
        for key in ("a", "b"):
            engine.layout[key].push_neutral(engine.kernels)
        yield state


def test_a_dropped_push_leaves_those_of_other_keys(state: BucketState) -> None:
    state.drop(["a"])
    assert state.waiting == {"b"}
    state.push({"a"}, None)
    assert state.own == {"a"}


def test_all_pushes_are_dropped_with_the_neutral_ones(state: BucketState) -> None:
    state.drop()
    assert state.waiting == set()
    state.push({"a", "b"}, None)
    assert state.own == {"a", "b"}


def test_a_bucket_has_the_time_of_its_collectives(state: BucketState) -> None:
    assert state.seconds is None
    state.add(DoneWork(), 0.0)
    state.complete()
    assert state.seconds is not None
