"""Calls of the stand-in that tests make directly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.nccl.standin.calls import DTYPES, OPS
from tests.nccl.standin.errors import RefusedByStandIn
from tests.nccl.standin.handle import Handle
from tests.nccl.standin.memory import POISON
from tests.nccl.standin.worker import Worker

F32 = DTYPES.index(np.dtype(np.float32))
SUM = OPS.index("sum")


def floats(worker: Worker, *values: float) -> Any:
    """Return a float32 array of the device, ordered before the current stream's next work."""
    return worker.streams.put(np.array(values, np.float32))


def follow(worker: Worker) -> None:
    """Order the communication stream after the current stream."""
    streams = worker.streams
    streams.wait(streams.communication, streams.record(streams.current()))


def lead(worker: Worker) -> None:
    """Order the current stream after the communication stream."""
    streams = worker.streams
    streams.wait(streams.current(), streams.record(streams.communication))


def all_reduce(
    worker: Worker, handle: Handle, send: Any, receive: Any = None, **changes: Any
) -> None:
    """Sum float32 arrays on the communication stream, in place without a `receive`."""
    receive = send if receive is None else receive
    given = {"count": send.size, "dtype": F32, "op": SUM, "stream": worker.streams.communication}
    worker.binding.all_reduce(handle, send.data.ptr, receive.data.ptr, **{**given, **changes})


def result(worker: Worker, array: Any) -> list[float]:
    """Return an array's content after the communication stream's work so far."""
    lead(worker)
    values: list[float] = worker.streams.get(array).tolist()
    return values


def poisoned(worker: Worker, array: Any) -> bool:
    """Return whether an output is still unwritten."""
    return bool((worker.streams.peek(array).view(np.uint8) == POISON).all())


@contextmanager
def breaks(worker: Worker, *words: str) -> Iterator[None]:
    """Expect the stand-in's refusal, with each of `words`."""
    __tracebackhide__ = True
    with pytest.raises(RefusedByStandIn) as caught:
        yield
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"lacks {missing} in its text: {caught.value}"
    worker.device.mend()
    worker.broken_on_purpose = True
