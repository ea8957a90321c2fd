"""Graphs of a communicator: captured launches.

NCCL destroys or aborts a communicator only after all graphs with its collectives are freed.  So the
graphs are freed first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ncclkv.comm.base import Graph
from ncclkv.comm.nccl.streams import StreamGraph, Streams
from ncclkv.comm.nccl.work import NcclWork
from ncclkv.comm.types import Work
from ncclkv.errors import UsageError


class NcclGraph(Graph):
    """Captured launches of one block.

    Parameters
    ----------
    replay : callable
        ``replay(graph)`` launches this graph.

    Attributes
    ----------
    calls : list of str
        The captured collectives, once the capture has ended.
    """

    def __init__(self, replay: Callable[[NcclGraph], Work]) -> None:
        self._replay = replay
        self._graph: StreamGraph | None = None
        self._kept: list[object] = []
        self._works: list[NcclWork] = []
        self.calls: list[str] = []

    def keep_alive(self, *objects: object) -> None:
        self._kept += objects

    def add(self, work: NcclWork, kept: tuple[object, ...]) -> None:
        """Add a collective, whose event is valid until the end of the capture, and its arrays."""
        self._works.append(work)
        self.keep_alive(*kept)

    def end(self, graph: StreamGraph | None) -> None:
        """End the capture: take the graph, or None if the capture failed."""
        self._graph = graph
        self.calls = [str(work) for work in self._works]
        for work in self._works:
            work.release()
        self._works.clear()

    def launch(self) -> Work:
        return self._replay(self)

    def check(self) -> None:
        """Raise `UsageError` unless the graph can be launched."""
        if self._graph is None:
            raise UsageError("this graph was not captured to its end, or was freed; capture again")

    def enqueue(self, stream: int) -> None:
        """Put the captured work on a stream."""
        if self._graph is not None:
            self._graph.launch(stream)

    def free(self) -> None:
        """Free the graph; works in flight keep its arrays alive."""
        self._graph = None


class Graphs:
    """Graphs of one communicator.

    Attributes
    ----------
    recording : NcclGraph or None
        The graph whose capture is open.
    stream : int
        Current stream of the open capture.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._live: weakref.WeakSet[NcclGraph] = weakref.WeakSet()
        self.recording: NcclGraph | None = None
        self.stream = 0

    @contextmanager
    def record(self, graph: NcclGraph) -> Iterator[NcclGraph]:
        """Capture a block on a stream of its own, which becomes current."""
        self.refuse("capture")
        self.stream = self._streams.begin_capture()
        self.recording = graph
        try:
            with self._streams.on(self.stream):
                yield graph
        except BaseException as error:
            self._discard()
            if text := self._streams.broke_capture(error):
                raise UsageError(f"capture: {text}") from error
            raise
        self._end(graph)

    def _end(self, graph: NcclGraph) -> None:
        """End the capture, unless a failure has ended it."""
        if self.recording is not graph:
            return
        made = None
        try:
            made = self._streams.end_capture()
            self._live.add(graph)
        finally:
            self.recording = None
            graph.end(made)

    def _discard(self) -> None:
        """End the capture and drop its graph."""
        graph, self.recording = self.recording, None
        if graph is not None:
            self._streams.drop_capture()
            graph.end(None)

    def refuse(self, what: str) -> None:
        """Raise `UsageError` if a capture is open: `what` cannot be part of a graph."""
        if self.recording is not None:
            raise UsageError(f"{what} was called inside a capture; call it after its end")

    def check_stream(self, current: int) -> None:
        """Raise `UsageError` if the current stream is not that of the capture."""
        if current != self.stream:
            raise UsageError(
                "capture: another stream than that of the capture was made current, and its work "
                "is not captured; leave the current stream as it is"
            )

    def free(self) -> None:
        """Free all graphs, before the communicator is freed."""
        self._discard()
        for graph in list(self._live):
            graph.free()
