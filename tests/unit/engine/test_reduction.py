"""Reductions: one prepared collective a range, made anew when its use changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.comm.base import Collective
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.engine.instrument import Instrument, Launch
from ncclkv.engine.reduction import DenseReduction, Span


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the ops of the reductions that communicators of one rank prepare."""
    ops: list[str] = []
    prepare = SoloCommunicator.reduction

    def reduction(self: Any, send: Any, receive: Any, op: str, **options: Any) -> Collective:
        made = prepare(self, send, receive, op, **options)
        ops.append(op)
        return made

    monkeypatch.setattr(SoloCommunicator, "reduction", reduction)
    return ops


def span() -> Span:
    """Return elements 2 to 6 of a bucket of 8, whose gradients are their own indices."""
    return Span(2, 6, np.arange(8.0)[2:6], np.zeros(8)[2:6], "bucket 0, key 'w'")


def test_a_prepared_reduction_sums_at_each_launch() -> None:
    part = span()
    collective = DenseReduction(SoloCommunicator(1.0)).prepare(part, part.weights, "sum")
    for factor in (1, 2):
        part.gradients[:] = factor * np.arange(2, 6)
        collective.launch().wait()
        assert part.weights.tolist() == [2 * factor, 3 * factor, 4 * factor, 5 * factor]


def test_a_store_prepares_each_range_once(prepared: list[str]) -> None:
    with ncclkv.create("local") as kv:
        kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=0.5))
        kv.init(["w", "b"], [np.zeros(4), np.zeros(4)])
        for step in range(3):
            kv.push(["w", "b"], [np.full(4, 2.0)] * 2)
            assert kv.pull("w").tolist() == [-1.0 - step] * 4
        assert prepared == ["sum"]
        for step in range(3):
            kv.push("b", np.full(4, 2.0))
            assert kv.pull("b").tolist() == [-4.0 - step] * 4
    assert prepared == ["sum", "sum"]


class Wire(Instrument):
    """Records the bytes of the array, and those that are sent."""

    def __init__(self) -> None:
        self.nbytes: list[tuple[int, int, str]] = []

    def launched(self, launch: Launch) -> None:
        self.nbytes.append((launch.nbytes, launch.wire, launch.label))


def test_a_rank_alone_sends_nothing() -> None:
    wire = Wire()
    with ncclkv.create("local") as kv:
        kv.add_instrument(wire)
        kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=0.5))
        kv.init("w", np.zeros(4))
        kv.push("w", np.ones(4))
        kv.wait()
    assert wire.nbytes == [(256, 0, "key 'w'")]  # a bucket is padded
