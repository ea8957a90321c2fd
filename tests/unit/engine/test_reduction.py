"""Reductions: one prepared collective a range, made anew when its use changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclkv.comm.base import Collective
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.engine.events import Events
from ncclkv.engine.instrument import Instrument, Launch
from ncclkv.engine.reduction import DenseReduction, Span, reduction_for
from ncclkv.errors import NotSupported


class Counting(SoloCommunicator):
    """A communicator of one rank that counts the reductions prepared."""

    prepared = 0

    def reduction(self, *arguments: Any, **options: Any) -> Collective:
        self.prepared += 1
        return super().reduction(*arguments, **options)


@pytest.fixture
def comm() -> Counting:
    return Counting(1.0)


def span() -> Span:
    """Return elements 2 to 6 of a bucket of 8, whose gradients are their own indices."""
    return Span(2, 6, np.arange(8.0)[2:6], np.zeros(8)[2:6], "bucket 0, key 'w'")


def dense(comm: Counting) -> DenseReduction:
    return DenseReduction(comm, Events())


def test_a_range_is_prepared_once(comm: Counting) -> None:
    reduction, part = dense(comm), span()
    for factor in (1, 2):
        part.gradients[:] = factor * np.arange(2, 6)
        work = reduction.launch(part, part.weights, "sum", None)
        work.wait()
        assert work.label == "bucket 0, key 'w'"
        assert part.weights.tolist() == [2 * factor, 3 * factor, 4 * factor, 5 * factor]
    assert comm.prepared == 1


def test_another_target_or_op_is_prepared_anew(comm: Counting) -> None:
    reduction, part = dense(comm), span()
    applied: list[tuple[int, int]] = []
    reduction.launch(part, part.weights, "sum", None).wait()
    part.weights[:] = 0
    reduction.launch(part, part.gradients, "sum", lambda lo, hi: applied.append((lo, hi))).wait()
    assert part.weights.tolist() == [0, 0, 0, 0]
    assert applied == [(0, 4)]
    reduction.launch(part, part.gradients, "max", None).wait()
    assert comm.prepared == 3


class Wire(Instrument):
    """Records the bytes of the array, and those that are sent."""

    def __init__(self) -> None:
        self.nbytes: list[tuple[int, int]] = []

    def launched(self, launch: Launch) -> None:
        self.nbytes.append((launch.nbytes, launch.wire))


def test_a_rank_alone_sends_nothing(comm: Counting) -> None:
    events, wire, part = Events(), Wire(), span()
    events.add(wire)
    reduction = DenseReduction(comm, events)
    reduction.launch(part, part.weights, "sum", None).wait()
    assert wire.nbytes == [(32, 0)]
    assert part.collective is not None
    assert part.collective.wire_bytes == 0


def test_a_refused_reduction_is_not_kept(comm: Counting) -> None:
    reduction, part = dense(comm), span()
    with pytest.raises(Exception, match="median"):
        reduction.launch(part, part.weights, "median", None)
    assert part.collective is None
    reduction.launch(part, part.weights, "sum", None).wait()
    assert part.weights.tolist() == [2, 3, 4, 5]


def test_encoded_gradients_are_refused(comm: Counting) -> None:
    class Half:
        name = "half"

    codec: Any = Half()
    with pytest.raises(NotSupported, match="codec 'half'"):
        reduction_for(comm, codec, Events())
