"""Captures: streams that record what is put on them, and graphs that do it again.

What CUDA forbids meanwhile is refused, in the words of the call: a look at an event, a wait of the
host, an allocation, a wait for an event of the other side of the capture's border, an end while a
stream that was drawn in has not come back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.nccl.standin.contract import ContractBroken
from tests.nccl.standin.handle import Handle
from tests.nccl.standin.memory import Allocation
from tests.nccl.standin.order import Access, Clock, Order, Span

if TYPE_CHECKING:
    from tests.nccl.standin.device import Device, Step

Make = Callable[[], "Step"]
"""Makes a piece of work anew, each time that it is to be done."""


@dataclass(frozen=True)
class Node:
    """A piece of work of a graph; of a collective, its communicator too."""

    what: str
    make: Make
    spans: Sequence[Span]
    handle: Handle | None


class CapturedEvent:
    """A point of a capture, which means nothing outside it."""

    def __init__(self, capture: Capture, name: str, clock: Clock) -> None:
        self.what = name
        self.capture = capture
        self.clock = clock

    def done(self) -> bool:
        raise ContractBroken(f"{self.what} was recorded in a capture, and cannot be looked at")


class _Apart(Order):
    """The order of what is in a capture, which has no place among what is done."""

    def __init__(self) -> None:
        super().__init__()
        self._accesses: dict[int, list[Access]] = {}

    def _history(self, allocation: Allocation) -> list[Access]:
        return self._accesses.setdefault(id(allocation), [])


class Capture:
    """What is being recorded.

    Parameters
    ----------
    device : Device
    origin : int
        The stream that it began on.
    """

    def __init__(self, device: Device, origin: int) -> None:
        self._device = device
        self._order = _Apart()
        self._origin = origin
        self._streams = {origin}
        self._nodes: list[Node] = []
        self.name = "the capture"

    def takes(self, stream: int) -> bool:
        """Whether what is put on a stream is recorded."""
        return stream in self._streams

    def add(self, stream: int, node: Node) -> None:
        """Record work; it must be in order with the other work of the capture."""
        self._order.access(stream, node.spans, f"{node.what} on {self._device.name(stream)}")
        self._nodes.append(node)
        if node.handle is not None:
            node.handle.graphs.add(self.name)

    def record(self, stream: int, name: str) -> CapturedEvent:
        """An event after what a stream of the capture was given."""
        self._order.access(stream, (), "record")
        return CapturedEvent(self, name, self._order.clock(stream))

    def wait(self, stream: int, event: Any) -> None:
        """Draw a stream into the capture, or order its work there."""
        if not isinstance(event, CapturedEvent) or event.capture is not self:
            raise ContractBroken(
                f"{self._device.name(stream)} is captured, and cannot wait for {event.what}, which "
                f"was recorded outside of the capture"
            )
        self._streams.add(stream)
        self._order.join(stream, event.clock)

    def end(self) -> list[Node]:
        """What was recorded."""
        self.drop()
        joined = self._order.clock(self._origin)
        for stream in self._streams - {self._origin}:
            if self._order.clock(stream).get(stream, 0) > joined.get(stream, 0):
                raise ContractBroken(
                    f"the capture ended while {self._device.name(stream)} was not joined to "
                    f"{self._device.name(self._origin)}; let that wait for an event at its end"
                )
        return self._nodes

    def drop(self) -> None:
        """Hold no communicator any more."""
        for node in self._nodes:
            if node.handle is not None:
                node.handle.graphs.discard(self.name)


class RecordedGraph:
    """Work to be done again; freed when nobody refers to it."""

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
        """Put all of it on one stream, in the order that it was recorded in."""
        device = self._device
        if device.capture is not None:
            raise ContractBroken(f"launch of {self.name} inside a capture")
        for handle in self._handles:
            handle.check(f"launch of {self.name}, with a collective")
        for node in self._nodes:
            for span in node.spans:
                device.memory.check_live(span.allocation, f"{node.what} of {self.name}")
        device.log.add(f"launch {self.name} on {device.name(stream)}")
        for node in self._nodes:
            device.enqueue(stream, node.make(), node.spans)
