"""Capabilities of the communicator under test, and the memory of its buffers.

A case makes its buffers with `current_buffers().put`, and reads them with `get`.  They lie in host
memory, unless the module that runs the cases has chosen another memory for its thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ncclkv.errors import OrderMismatch

Array = NDArray[Any]


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of a communicator: host communicators have all, GPU communicators lack some.

    Attributes
    ----------
    rank_order : bool
        Sums are made in rank order, in float32 for 16-bit floats, with NumPy's bits.  Otherwise
        sums may differ by rounding.
    rounded_averages : bool
        The sum of an average of bfloat16 is rounded before it is divided.
    nan_wins : bool
        The maximum of a number and NaN is NaN.
    missing : str
        Text of the timeout about the missing ranks, when the `{last}` rank has not arrived.
    sent_counts : bool
        Data that a rank sent before it left still arrives.
    sender_goes_on : bool
        A broadcast of another length than its receivers expect fails on the receivers alone.
    compares_empty : bool
        A collective of 0 elements counts in the order of calls.
    compares_names : bool
        Programs of other names count as other calls.
    free_order : bool
        Ranks may launch on two communicators in different orders.
    read_only : bool
        Views that users must not write, such as ``kv.value``, are read-only arrays.
    timed : bool
        The host waits for reductions, so the store's plan has their times.
    deadline : float
        Deadline in seconds of tests in which one rank does not arrive; the others need less.
    slack : float
        Seconds after the deadline within which the error is raised; an abort takes part of them.
    mismatch_seconds : float
        The deadline of a collective that ranks call with different lengths.
    refused : callable
        ``refused(dtype, op)``: text of the error for an op that hosts support, or "".
    """

    rank_order: bool = True
    rounded_averages: bool = False
    nan_wins: bool = True
    missing: str = "rank {last};"
    sent_counts: bool = True
    sender_goes_on: bool = True
    compares_empty: bool = True
    compares_names: bool = True
    free_order: bool = True
    read_only: bool = True
    timed: bool = True
    deadline: float = 0.1
    slack: float = 1.0
    mismatch_seconds: float = 30.0
    refused: Callable[[np.dtype[Any], str], str] = lambda dtype, op: ""


class HostBuffers:
    """Buffers in host memory: NumPy arrays whose contents are complete after a wait."""

    capabilities = Capabilities()

    def put(self, values: Array) -> Any:
        """Return a new buffer with these values."""
        return np.array(values)

    def get(self, buffer: Any) -> Array:
        """Return the contents of a buffer, after all waits before this call."""
        array: Array = buffer
        return array

    def write(self, buffer: Any, values: Any) -> None:
        """Write to a buffer after the work launched on it."""
        buffer[...] = values

    def copy(self, buffer: Any, into: Any) -> None:
        """Copy between buffers after the work launched on them."""
        np.copyto(into, buffer)

    def address(self, buffer: Any) -> int:
        """Return the address of a buffer."""
        place: int = buffer.ctypes.data
        return place

    def mismatch(self, *words: str) -> AbstractContextManager[Any]:
        """Expect the error about differing calls; on hosts its text contains each of `words`."""
        return _mismatch(words)


class BuffersOfSeveralNodes(HostBuffers):
    """Buffers in host memory of ranks on several nodes, where sums are made node by node.

    A rank waits for the ranks of its node, and for one rank of each other node, which may wait for
    its own neighbours.
    """

    capabilities = Capabilities(rank_order=False, missing="rank")


@contextmanager
def _mismatch(words: tuple[str, ...]) -> Iterator[None]:
    """Expect `OrderMismatch`, with every one of `words`."""
    with pytest.raises(OrderMismatch) as caught:
        yield
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"lacks {missing} in its text: {caught.value}"


class _Current(threading.local):
    """Maker of buffers of each thread."""

    buffers = HostBuffers()


_current = _Current()


def current_buffers() -> HostBuffers:
    """Return the maker of this thread's buffers."""
    return _current.buffers


@contextmanager
def use_buffers(buffers: HostBuffers) -> Iterator[None]:
    """Run cases with these buffers."""
    before, _current.buffers = _current.buffers, buffers
    try:
        yield
    finally:
        _current.buffers = before


@contextmanager
def require_rank_order() -> Iterator[None]:
    """Require that communicators here sum in the order of hosts on one node."""
    buffers = copy(current_buffers())
    buffers.capabilities = replace(
        buffers.capabilities, rank_order=True, rounded_averages=False, nan_wins=True
    )
    with use_buffers(buffers):
        yield


def near(got: Array, wanted: Array, terms: int) -> bool:
    """Return whether two sums of `terms` small numbers differ by rounding alone.

    Whole numbers must be equal.
    """
    if wanted.dtype.kind in "biu":
        return bool((got == wanted).all())
    if wanted.dtype.kind == "c":
        return near(got.view(got.real.dtype), wanted.view(got.real.dtype), terms)
    wide = [np.asarray(x, np.float64) for x in (got, wanted)]
    # Each of `terms` additions rounds by half a unit in the last place; partial sums may cancel.
    unit = {2: 2.0**-8, 4: 2.0**-24, 8: 2.0**-53}[wanted.dtype.itemsize]
    bound = terms * unit * (8 * terms + np.abs(wide[1]))
    return bool(((np.abs(wide[0] - wide[1]) <= bound) | (wide[0] == wide[1])).all())
