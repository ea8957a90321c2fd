"""Graphs of a communicator: captured launches.

NCCL destroys or aborts a communicator only after all graphs with its collectives are freed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ncclkv.comm.base import Graph
from ncclkv.comm.nccl.binding import Handle
from ncclkv.comm.nccl.streams import StreamGraph, Streams
from ncclkv.comm.nccl.work import NcclWork
from ncclkv.comm.types import Work
from ncclkv.errors import UsageError


class Launcher(Protocol):
    """Progress of a communicator, as far as its graphs use it."""

    @property
    def graphs(self) -> Graphs:
        """All graphs of the communicator."""

    def check(self) -> None:
        """Raise the error that broke the communicator."""

    def launch(
        self,
        what: str,
        enqueue: Callable[[Handle, int], None],
        apply: Callable[[], None] | None,
        *kept: object,
    ) -> Work:
        """Put work on the communication stream."""


class NcclGraph(Graph):
    """Captured launches of one block."""

    def __init__(self, progress: Launcher) -> None:
        self._progress = progress
        self._graph: StreamGraph | None = None
        self._kept: list[object] = []
        self._works: list[NcclWork] = []
        self.calls: list[str] = []

    def keep_alive(self, *objects: object) -> None:
        self._kept += objects

    def add(self, work: NcclWork) -> None:
        """Add a collective; its event is valid until the end of the capture."""
        self._works.append(work)

    def end(self, graph: StreamGraph | None) -> None:
        """End the capture: take the graph, or None if the capture failed."""
        self._graph = graph
        self.calls = [str(work) for work in self._works]
        for work in self._works:
            work.release()
        self._works.clear()

    def launch(self) -> Work:
        self._progress.check()
        self._progress.graphs.refuse("the launch of a graph")
        if self._graph is None:
            raise UsageError("this graph was not captured to its end, or was freed; capture again")
        # The work in flight refers to this graph, and so to the arrays that it reads.
        what = f"a captured step (collectives: {len(self.calls)})"
        return self._progress.launch(what, lambda _, stream: self._run(stream), None, self)

    def _run(self, stream: int) -> None:
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
            if said := self._streams.broke_capture(error):
                raise UsageError(f"capture: {said}") from error
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
                "another stream than the capture's own was made the current one inside it, and "
                "what is put there is not captured; leave the current stream as it is"
            )

    def free(self) -> None:
        """Free all graphs, before the communicator is freed."""
        self._discard()
        for graph in list(self._live):
            graph.free()
