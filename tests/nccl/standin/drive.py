"""Calls of the stand-in that tests make directly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.nccl.standin.calls import DTYPES, OPS
from tests.nccl.standin.contract import ContractBroken
from tests.nccl.standin.handle import Handle
from tests.nccl.standin.memory import POISON
from tests.nccl.standin.rank import Seat

F32 = DTYPES.index(np.dtype(np.float32))
SUM = OPS.index("sum")


def floats(seat: Seat, *values: float) -> Any:
    """Return a float32 array of the device, ordered before the current stream's next work."""
    return seat.streams.put(np.array(values, np.float32))


def follow(seat: Seat) -> None:
    """Order the communication stream after the current stream."""
    streams = seat.streams
    streams.wait(streams.communication, streams.record(streams.current()))


def lead(seat: Seat) -> None:
    """Order the current stream after the communication stream."""
    streams = seat.streams
    streams.wait(streams.current(), streams.record(streams.communication))


def all_reduce(seat: Seat, handle: Handle, send: Any, receive: Any = None, **changes: Any) -> None:
    """Sum float32 arrays on the communication stream, in place without a `receive`."""
    receive = send if receive is None else receive
    numbers = {"count": send.size, "dtype": F32, "op": SUM, "stream": seat.streams.communication}
    seat.binding.all_reduce(handle, send.data.ptr, receive.data.ptr, **{**numbers, **changes})


def result(seat: Seat, array: Any) -> list[float]:
    """Return an array's content after the communication stream's work so far."""
    lead(seat)
    values: list[float] = seat.streams.get(array).tolist()
    return values


def poisoned(seat: Seat, array: Any) -> bool:
    """Return whether an output is still unwritten."""
    return bool((seat.streams.peek(array).view(np.uint8) == POISON).all())


@contextmanager
def breaks(seat: Seat, *words: str) -> Iterator[None]:
    """Expect the stand-in's refusal, with each of `words`."""
    __tracebackhide__ = True
    with pytest.raises(ContractBroken) as caught:
        yield
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"does not say {missing}: {caught.value}"
    seat.device.mend()
    seat.spoilt = True
