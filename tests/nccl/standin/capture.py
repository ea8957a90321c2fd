"""Captures: streams that record work, and graphs that repeat it.

A capture refuses what CUDA forbids, and names the call: a query of an event, a wait of the host, an
allocation, a wait for an event outside of the capture, and an end while a stream of the capture has
not joined its origin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.nccl.standin.errors import RefusedByStandIn
from tests.nccl.standin.handle import Handle
from tests.nccl.standin.memory import Allocation
from tests.nccl.standin.order import Access, Clock, Order, Span

if TYPE_CHECKING:
    from tests.nccl.standin.device import Device, Step

Make = Callable[[], "Step"]
"""Function that makes a piece of work anew, for each launch."""


@dataclass(frozen=True)
class Node:
    """A piece of work of a graph; a collective's node holds its communicator, too."""

    what: str
    make: Make
    spans: Sequence[Span]
    handle: Handle | None


class CapturedEvent:
    """A point of a capture, without meaning outside it."""

    def __init__(self, capture: Capture, name: str, clock: Clock) -> None:
        self.what = name
        self.capture = capture
        self.clock = clock

    def done(self) -> bool:
        raise RefusedByStandIn(f"{self.what} was recorded in a capture, and cannot be looked at")


class _Apart(Order):
    """The order of accesses in a capture, apart from the order of executed work."""

    def __init__(self) -> None:
        super().__init__()
        self._accesses: dict[int, list[Access]] = {}

    def _history(self, allocation: Allocation) -> list[Access]:
        return self._accesses.setdefault(id(allocation), [])


class Capture:
    """A capture in progress.

    Parameters
    ----------
    device : Device
    origin : int
        Stream on which the capture began.
    """

    def __init__(self, device: Device, origin: int) -> None:
        self._device = device
        self._order = _Apart()
        self._origin = origin
        self._streams = {origin}
        self._nodes: list[Node] = []
        self.name = "the capture"

    def takes(self, stream: int) -> bool:
        """Return whether the capture records a stream's work."""
        return stream in self._streams

    def add(self, stream: int, node: Node) -> None:
        """Record work, which must be ordered after the conflicting work of the capture."""
        self._order.access(stream, node.spans, f"{node.what} on {self._device.name(stream)}")
        self._nodes.append(node)
        if node.handle is not None:
            node.handle.graphs.add(self.name)

    def record(self, stream: int, name: str) -> CapturedEvent:
        """Return an event after a stream's work so far."""
        self._order.access(stream, (), "record")
        return CapturedEvent(self, name, self._order.clock(stream))

    def wait(self, stream: int, event: Any) -> None:
        """Add a stream to the capture, or order its work after an event."""
        if not isinstance(event, CapturedEvent) or event.capture is not self:
            raise RefusedByStandIn(
                f"{self._device.name(stream)} is captured, and cannot wait for {event.what}, which "
                f"was recorded outside of the capture"
            )
        self._streams.add(stream)
        self._order.join(stream, event.clock)

    def end(self) -> list[Node]:
        """Return the recorded graph."""
        self.drop()
        joined = self._order.clock(self._origin)
        for stream in self._streams - {self._origin}:
            if self._order.clock(stream).get(stream, 0) > joined.get(stream, 0):
                raise RefusedByStandIn(
                    f"the capture ended while {self._device.name(stream)} was not joined to "
                    f"{self._device.name(self._origin)}; let that wait for an event at its end"
                )
        return self._nodes

    def drop(self) -> None:
        """Release all communicators."""
        for node in self._nodes:
            if node.handle is not None:
                node.handle.graphs.discard(self.name)


class RecordedGraph:
    """Work that can be repeated; freed when nothing refers to it."""

    def __init__(self, device: Device, name: str, nodes: Sequence[Node]) -> None:
        self._device = device
        self._nodes = nodes
        self.name = name
        self._handles = {node.handle for node in nodes if node.handle is not None}
        for handle in self._handles:
            handle.graphs.add(name)

    def __del__(self) -> None:
        for handle in self._handles:
            handle.graphs.discard(self.name)

    def launch(self, stream: int) -> None:
        """Put all work on one stream, in the recorded order."""
        device = self._device
        if device.capture is not None:
            raise RefusedByStandIn(f"launch of {self.name} inside a capture")
        for handle in self._handles:
            handle.check(f"launch of {self.name}, with a collective")
        for node in self._nodes:
            for span in node.spans:
                device.memory.check_live(span.allocation, f"{node.what} of {self.name}")
        device.log.add(f"launch {self.name} on {device.name(stream)}")
        for node in self._nodes:
            device.enqueue(stream, node.make(), node.spans)
