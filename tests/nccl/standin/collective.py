"""A collective in a stream: it compares the ranks' calls, moves their data, and writes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.nccl.standin.calls import OPS, Placed, dtype_of
from tests.nccl.standin.errors import RefusedByStandIn
from tests.nccl.standin.handle import Handle
from tests.nccl.standin.memory import POISON
from tests.nccl.standin.operation import Operation

_TEXT_BYTES = 120


class Collective(Operation):
    """A call of one rank after the end of its group.

    The ranks exchange their calls first, and exchange no data if the calls differ.
    """

    def __init__(self, handle: Handle, placed: Placed) -> None:
        super().__init__(handle, placed.call.kind)
        self.call = placed.call
        self._send = _bytes(placed.send)
        self._outputs = _bytes(placed.receive) if placed.writes else None
        self._calls = np.zeros(_TEXT_BYTES * handle.size, np.uint8)
        self._result: NDArray[Any] | None = None

    def _begin(self) -> None:
        """Read the inputs, poison the outputs, and send the call to the other ranks."""
        self._inputs = self._send.copy()
        if self._outputs is not None:
            self._outputs[:] = POISON
        text = f"{self.index}: {self.call}".encode()
        own = np.frombuffer(text.ljust(_TEXT_BYTES), np.uint8)
        self.handle.started += 1
        self._work = self.handle.host.allgather(own, self._calls)

    def _compare(self) -> None:
        """Refuse calls that differ, with equal texts on all ranks."""
        texts = [row.tobytes().decode().strip() for row in self._calls.reshape(-1, _TEXT_BYTES)]
        for rank, text in enumerate(texts):
            if text != texts[0]:
                raise RefusedByStandIn(
                    f"the ranks of {self.handle.name} made different calls: rank 0 call "
                    f"{texts[0]}, rank {rank} call {text}"
                )

    def _move(self) -> None:
        """Start to move the data; sums are made in rank order."""
        host, call = self.handle.host, self.call
        send = self._inputs.view(dtype_of(call))
        op = OPS[call.op or 0]
        root = call.root or 0
        self._result = np.empty(call.count, send.dtype)
        if call.kind == "all_reduce":
            self._work = host.allreduce(send, self._result, op)
        elif call.kind == "reduce":
            self._work = host.reduce(send, self._result, op, root)
        elif call.kind == "reduce_scatter":
            self._work = host.reduce_scatter(send, self._result, op)
        elif call.kind == "all_gather":
            self._result = np.empty(call.count * host.size, send.dtype)
            self._work = host.allgather(send, self._result)
        else:
            if call.root == host.rank:
                np.copyto(self._result, send)
            self._work = host.broadcast(self._result, root)

    def _finish(self) -> None:
        """Write the outputs."""
        if self._outputs is not None and self._result is not None:
            np.copyto(self._outputs, self._result.view(np.uint8))
        self.handle.completed += 1


def _bytes(span: Any) -> NDArray[np.uint8]:
    """Return the memory of a span."""
    memory: NDArray[np.uint8] = span.allocation.bytes(span.lo, span.hi)
    return memory
