"""Layer 2, recording stand-in, not NCCL: it refuses what CUDA forbids in captures and of graphs.

Point 11 of the contract, each rule broken on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.capture import RecordedGraph
from tests.nccl.standin.direct_calls import all_reduce, breaks, floats, follow, lead, result

pytestmark = pytest.mark.limit(20)
MODES = pytest.mark.parametrize("lazy", [False, True], ids=["prompt", "lazy"])


class Box:
    """The result of a captured block."""

    graph: RecordedGraph | None = None

    def launch(self, stream: int) -> None:
        assert self.graph is not None
        self.graph.launch(stream)


@contextmanager
def capturing(worker: Worker) -> Iterator[Box]:
    """Capture a block on the stream that is current in it."""
    box, streams = Box(), worker.streams
    with streams.on(streams.begin_capture()):
        yield box
    box.graph = streams.end_capture()


def summing(worker: Worker, handle: Any, array: Any) -> Box:
    """Return a graph that adds 1 to an array and sums it over ranks."""
    with capturing(worker) as box:
        worker.streams.work("add", [array], [array], lambda old, new: np.add(old, 1, out=new))
        follow(worker)
        all_reduce(worker, handle, array)
        lead(worker)
    return box


def launched(worker: Worker, box: Box) -> None:
    """Launch a graph on the communication stream, ordered after the current stream."""
    follow(worker)
    box.launch(worker.streams.communication)
    lead(worker)


# Results


@MODES
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_graph_repeats_its_work_on_current_contents(size: int, lazy: bool) -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 5)
        box = summing(worker, handle, array)
        assert worker.streams.get(array).tolist() == [5]  # no work has run
        for start in (1, 10):
            worker.streams.write(array, start)
            launched(worker, box)
            launched(worker, box)
            once = size * (start + 1)
            assert result(worker, array) == [size * (once + 1)]

    run_on_standin(size, body, lazy=lazy)


def test_other_streams_run_meanwhile() -> None:
    def body(worker: Worker) -> None:
        array, other = floats(worker, 1), worker.device.stream("another stream")
        worker.streams.wait(other, worker.streams.record(worker.streams.current()))
        with capturing(worker):
            with worker.streams.on(other):
                worker.streams.write(array, 3)
            worker.streams.record(other)
        with worker.streams.on(other):
            assert worker.streams.get(array).tolist() == [3]

    run_on_standin(1, body)


# Calls refused in a capture


REFUSED = {
    "a look at an event": (lambda worker, event, array: event.done(), "a look at event"),
    "a wait": (
        lambda worker, event, array: worker.streams.get(array),
        "a wait of the host for the captured stream",
    ),
    "memory": (lambda worker, event, array: floats(worker, 1), "an allocation of 4 bytes"),
    "another capture": (
        lambda worker, event, array: worker.streams.begin_capture(),
        "the begin of a capture inside a capture",
    ),
    "an event from before": (
        lambda worker, event, array: worker.streams.wait(worker.streams.current(), event),
        "the captured stream is captured, and cannot wait for event",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_calls_that_invalidate_a_capture(name: str) -> None:
    call, words = REFUSED[name]

    def body(worker: Worker) -> None:
        array = floats(worker, 1)
        event = worker.streams.record(worker.streams.current())
        with breaks(worker, words), worker.streams.on(worker.streams.begin_capture()):
            call(worker, event, array)

    run_on_standin(1, body)


def test_an_event_of_a_capture_is_invalid_after_it() -> None:
    def body(worker: Worker) -> None:
        streams = worker.streams
        with capturing(worker):
            event: Any = streams.record(streams.current())
        with breaks(worker, "was recorded in a capture, and cannot be looked at"):
            event.done()
        with breaks(worker, "the default stream cannot wait for event", "its capture is over"):
            streams.wait(streams.current(), event)
        with (
            breaks(worker, "which was recorded outside of the capture"),
            streams.on(streams.begin_capture()),
        ):
            streams.wait(streams.current(), event)

    run_on_standin(1, body)


def test_the_communication_stream_must_rejoin_the_capture() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        with (
            breaks(
                worker, "the capture ended while the communication stream was not joined to the"
            ),
            capturing(worker),
        ):
            follow(worker)
            all_reduce(worker, handle, array)
            lead(worker)
            all_reduce(worker, handle, array)

    run_on_standin(2, body)


def test_the_default_stream_is_not_captured() -> None:
    def body(worker: Worker) -> None:
        with breaks(worker, "the default stream, 0, cannot be captured"):
            worker.device.begin_capture(0)
        with breaks(worker, "the end of a capture that never began"):
            worker.streams.end_capture()

    run_on_standin(1, body)


# Order


def test_work_of_a_capture_is_in_order() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        words = "reads memory 1[0:4], and nothing orders it after all_reduce of communicator 0 on"
        with breaks(worker, "a kernel on the captured stream", words), capturing(worker):
            follow(worker)
            all_reduce(worker, handle, array)
            worker.streams.work("a kernel", [array], (), lambda view: None)

    run_on_standin(2, body)


@MODES
def test_a_launch_must_follow_the_writer_of_its_input(lazy: bool) -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        box = summing(worker, handle, array)
        worker.streams.write(array, 7)
        with breaks(worker, "add on the communication stream reads", "after a copy from the host"):
            box.launch(worker.streams.communication)

    run_on_standin(2, body, lazy=lazy)


@MODES
def test_a_reader_follows_the_launch(lazy: bool) -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        box = summing(worker, handle, array)
        follow(worker)
        box.launch(worker.streams.communication)
        with breaks(worker, "a copy to the host", "nothing orders it after all_reduce 0 of commu"):
            worker.streams.get(array)

    run_on_standin(2, body, lazy=lazy)


# Ranks, memory and lifetimes


def test_a_launch_on_one_rank_alone_is_a_differing_call() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        box = summing(worker, handle, array)
        with breaks(worker, "made different calls", "call 0: all_reduce(", "call 0: broadcast("):
            if worker.rank:
                launched(worker, box)
            else:
                follow(worker)
                place = array.data.ptr
                worker.binding.broadcast(
                    handle, place, place, 1, 7, 0, worker.streams.communication
                )
            result(worker, array)

    run_on_standin(2, body)


def test_memory_of_a_graph_stays() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        box = summing(worker, handle, array)
        del array
        with breaks(worker, "add of graph 1 touches memory 1, which was freed; refer to all that"):
            box.launch(worker.streams.communication)

    run_on_standin(1, body)


def test_memory_of_a_graph_in_flight_stays() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        box = summing(worker, handle, array)
        follow(worker)
        box.launch(worker.streams.communication)
        del array
        with breaks(worker, "memory 1 was freed while all_reduce 0 of communicator 0"):
            worker.streams.record(worker.streams.communication)

    run_on_standin(2, body, lazy=True)


@pytest.mark.parametrize("end", ["destroy", "abort"])
def test_a_communicator_outlives_its_graphs(end: str) -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        box = summing(worker, handle, array)
        free = getattr(worker.binding, end)
        words = (
            f"{end} of communicator 0 on rank {worker.rank} while there is graph 1 with its coll"
        )
        with breaks(worker, words, "for whose end NCCL waits"):
            free(handle)
        box.graph = None
        free(handle)

    run_on_standin(2, body)


def test_a_capture_that_was_left_holds_its_communicator_too() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        with worker.streams.on(worker.streams.begin_capture()):
            follow(worker)
            all_reduce(worker, handle, array)
        with breaks(worker, "abort of communicator 0", "while there is the capture"):
            worker.binding.abort(handle)
        worker.binding.abort(handle)

    run_on_standin(1, body)
