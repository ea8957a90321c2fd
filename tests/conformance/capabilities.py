"""Capabilities of the communicator under test, and the memory of its buffers.

A case makes its buffers with `here().put`, and reads them with `here().get`.  Each thread has a
memory of its own: host memory, unless the module that runs the cases chooses another.
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
    """Promises of communicators of hosts; communicators of GPUs turn some of them off.

    Attributes
    ----------
    rank_order : bool
        Sums are made in rank order, those of 16-bit floats in float32, with NumPy's bits.  Else
        all that is asked is that they are as near as roundings allow.
    nan_wins : bool
        The maximum of a number and NaN is NaN.
    missing : str
        Whom a wait for a collective of buffers names when the `{last}` rank has not come.
    sent_counts : bool
        What a rank sent before it left arrives.
    sender_goes_on : bool
        A broadcast from this rank that others take for a longer or shorter one fails there alone.
    compares_empty : bool
        A collective of nothing takes part in the order of calls.
    free_order : bool
        Ranks may launch on two communicators in different orders.
    read_only : bool
        What a store lets its users see and not write is read-only.
    timed : bool
        The host waits for reductions, so that a store knows how long they took.
    deadline : float
        Seconds that are enough for ranks that all come, in a test of one that does not.
    slack : float
        Seconds that the error may come after its deadline: an abort is among them.
    mismatch_seconds : float
        The deadline of a collective that ranks call with different lengths.
    refused : callable
        ``refused(dtype, op)``: words of the refusal of an op that hosts can do, or "".
    """

    rank_order: bool = True
    nan_wins: bool = True
    missing: str = "rank {last};"
    sent_counts: bool = True
    sender_goes_on: bool = True
    compares_empty: bool = True
    free_order: bool = True
    read_only: bool = True
    timed: bool = True
    deadline: float = 0.1
    slack: float = 1.0
    mismatch_seconds: float = 30.0
    refused: Callable[[np.dtype[Any], str], str] = lambda dtype, op: ""


class Place:
    """Host memory: buffers are NumPy arrays, and a wait completes their contents."""

    promises = Capabilities()

    def put(self, values: Array) -> Any:
        """Return a new buffer with these values."""
        return np.array(values)

    def get(self, buffer: Any) -> Array:
        """Return the contents of a buffer, after all waits before this call."""
        array: Array = buffer
        return array

    def write(self, buffer: Any, values: Any) -> None:
        """Change a buffer, in the order of the work launched on it."""
        buffer[...] = values

    def copy(self, buffer: Any, into: Any) -> None:
        """Copy between buffers, in the order of the work launched on them."""
        np.copyto(into, buffer)

    def address(self, buffer: Any) -> int:
        """Return the address of a buffer."""
        place: int = buffer.ctypes.data
        return place

    def mismatch(self, *words: str) -> AbstractContextManager[Any]:
        """Expect the error of calls that differ between ranks; `words` are in a host's error."""
        return _mismatch(words)


class SeveralNodes(Place):
    """Host memory of ranks on several nodes: sums are made node by node, in rank order.

    A rank waits for ranks of its node, and for one rank of each other node, which may wait for
    others.
    """

    promises = Capabilities(rank_order=False, missing="rank")


@contextmanager
def _mismatch(words: tuple[str, ...]) -> Iterator[None]:
    """Expect `OrderMismatch`, with every one of `words`."""
    with pytest.raises(OrderMismatch) as caught:
        yield
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"does not say {missing}: {caught.value}"


class _Here(threading.local):
    """Memory of this thread."""

    place = Place()


_here = _Here()


def here() -> Place:
    """Return the memory of this thread's buffers."""
    return _here.place


@contextmanager
def at(place: Place) -> Iterator[None]:
    """Run cases with buffers in `place`."""
    before, _here.place = _here.place, place
    try:
        yield
    finally:
        _here.place = before


@contextmanager
def in_rank_order() -> Iterator[None]:
    """Require that communicators here sum in the order of hosts on one node."""
    place = copy(here())
    place.promises = replace(place.promises, rank_order=True, nan_wins=True)
    with at(place):
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
    # Of each of `terms` steps half a unit in the last place of partial sums that may cancel.
    unit = {2: 2.0**-8, 4: 2.0**-24, 8: 2.0**-53}[wanted.dtype.itemsize]
    bound = terms * unit * (8 * terms + np.abs(wide[1]))
    return bool(((np.abs(wide[0] - wide[1]) <= bound) | (wide[0] == wide[1])).all())
