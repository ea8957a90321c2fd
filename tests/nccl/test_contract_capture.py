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

from tests.nccl.standin import Seat, run_seats
from tests.nccl.standin.capture import RecordedGraph
from tests.nccl.standin.drive import all_reduce, breaks, floats, follow, lead, result

pytestmark = pytest.mark.limit(20)
MODES = pytest.mark.parametrize("lazy", [False, True], ids=["prompt", "lazy"])


class Box:
    """The result of a captured block."""

    graph: RecordedGraph | None = None

    def launch(self, stream: int) -> None:
        assert self.graph is not None
        self.graph.launch(stream)


@contextmanager
def capturing(seat: Seat) -> Iterator[Box]:
    """Capture a block on the stream that is current in it."""
    box, streams = Box(), seat.streams
    with streams.on(streams.begin_capture()):
        yield box
    box.graph = streams.end_capture()


def summing(seat: Seat, handle: Any, array: Any) -> Box:
    """Return a graph that adds 1 to an array and sums it over ranks."""
    with capturing(seat) as box:
        seat.streams.work("add", [array], [array], lambda old, new: np.add(old, 1, out=new))
        follow(seat)
        all_reduce(seat, handle, array)
        lead(seat)
    return box


def launched(seat: Seat, box: Box) -> None:
    """Launch a graph on the communication stream, ordered after the current stream."""
    follow(seat)
    box.launch(seat.streams.communication)
    lead(seat)


# Results


@MODES
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_graph_does_it_again_with_what_is_there_then(size: int, lazy: bool) -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 5)
        box = summing(seat, handle, array)
        assert seat.streams.get(array).tolist() == [5]  # no work has run
        for start in (1, 10):
            seat.streams.write(array, start)
            launched(seat, box)
            launched(seat, box)
            once = size * (start + 1)
            assert result(seat, array) == [size * (once + 1)]

    run_seats(size, body, lazy=lazy)


def test_other_streams_go_on_meanwhile() -> None:
    def body(seat: Seat) -> None:
        array, other = floats(seat, 1), seat.device.stream("another stream")
        seat.streams.wait(other, seat.streams.record(seat.streams.current()))
        with capturing(seat):
            with seat.streams.on(other):
                seat.streams.write(array, 3)
            seat.streams.record(other)
        with seat.streams.on(other):
            assert seat.streams.get(array).tolist() == [3]

    run_seats(1, body)


# Calls refused in a capture


REFUSED = {
    "a look at an event": (lambda seat, event, array: event.done(), "a look at event"),
    "a wait": (
        lambda seat, event, array: seat.streams.get(array),
        "a wait of the host for the captured stream",
    ),
    "memory": (lambda seat, event, array: floats(seat, 1), "an allocation of 4 bytes"),
    "another capture": (
        lambda seat, event, array: seat.streams.begin_capture(),
        "the begin of a capture inside a capture",
    ),
    "an event from before": (
        lambda seat, event, array: seat.streams.wait(seat.streams.current(), event),
        "the captured stream is captured, and cannot wait for event",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_spoils_a_capture(name: str) -> None:
    call, words = REFUSED[name]

    def body(seat: Seat) -> None:
        array = floats(seat, 1)
        event = seat.streams.record(seat.streams.current())
        with breaks(seat, words), seat.streams.on(seat.streams.begin_capture()):
            call(seat, event, array)

    run_seats(1, body)


def test_an_event_of_a_capture_means_nothing_after_it() -> None:
    def body(seat: Seat) -> None:
        streams = seat.streams
        with capturing(seat):
            event: Any = streams.record(streams.current())
        with breaks(seat, "was recorded in a capture, and cannot be looked at"):
            event.done()
        with breaks(seat, "the default stream cannot wait for event", "its capture is over"):
            streams.wait(streams.current(), event)
        with (
            breaks(seat, "which was recorded outside of the capture"),
            streams.on(streams.begin_capture()),
        ):
            streams.wait(streams.current(), event)

    run_seats(1, body)


def test_the_communication_stream_must_come_back() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        with (
            breaks(seat, "the capture ended while the communication stream was not joined to the"),
            capturing(seat),
        ):
            follow(seat)
            all_reduce(seat, handle, array)
            lead(seat)
            all_reduce(seat, handle, array)

    run_seats(2, body)


def test_the_default_stream_is_not_captured() -> None:
    def body(seat: Seat) -> None:
        with breaks(seat, "the default stream, 0, cannot be captured"):
            seat.device.begin_capture(0)
        with breaks(seat, "the end of a capture that never began"):
            seat.streams.end_capture()

    run_seats(1, body)


# Order


def test_work_of_a_capture_is_in_order() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        words = "reads memory 1[0:4], and nothing orders it after all_reduce of communicator 0 on"
        with breaks(seat, "a kernel on the captured stream", words), capturing(seat):
            follow(seat)
            all_reduce(seat, handle, array)
            seat.streams.work("a kernel", [array], (), lambda view: None)

    run_seats(2, body)


@MODES
def test_a_launch_follows_who_wrote_its_input(lazy: bool) -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        box = summing(seat, handle, array)
        seat.streams.write(array, 7)
        with breaks(seat, "add on the communication stream reads", "after a copy from the host"):
            box.launch(seat.streams.communication)

    run_seats(2, body, lazy=lazy)


@MODES
def test_a_reader_follows_the_launch(lazy: bool) -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        box = summing(seat, handle, array)
        follow(seat)
        box.launch(seat.streams.communication)
        with breaks(seat, "a copy to the host", "nothing orders it after all_reduce 0 of commu"):
            seat.streams.get(array)

    run_seats(2, body, lazy=lazy)


# Ranks, memory and lifetimes


def test_a_launch_that_others_do_not_make_is_a_call_that_differs() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        box = summing(seat, handle, array)
        with breaks(seat, "made different calls", "call 0: all_reduce(", "call 0: broadcast("):
            if seat.rank:
                launched(seat, box)
            else:
                follow(seat)
                place = array.data.ptr
                seat.binding.broadcast(handle, place, place, 1, 7, 0, seat.streams.communication)
            result(seat, array)

    run_seats(2, body)


def test_memory_of_a_graph_stays() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        box = summing(seat, handle, array)
        del array
        with breaks(seat, "add of graph 1 touches memory 1, which was freed; refer to all that"):
            box.launch(seat.streams.communication)

    run_seats(1, body)


def test_memory_of_a_graph_in_flight_stays() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        box = summing(seat, handle, array)
        follow(seat)
        box.launch(seat.streams.communication)
        del array
        with breaks(seat, "memory 1 was freed while all_reduce 0 of communicator 0"):
            seat.streams.record(seat.streams.communication)

    run_seats(2, body, lazy=True)


@pytest.mark.parametrize("end", ["destroy", "abort"])
def test_a_communicator_outlives_its_graphs(end: str) -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        box = summing(seat, handle, array)
        free = getattr(seat.binding, end)
        words = f"{end} of communicator 0 on rank {seat.rank} while there is graph 1 with its coll"
        with breaks(seat, words, "for whose end NCCL waits"):
            free(handle)
        box.graph = None
        free(handle)

    run_seats(2, body)


def test_a_capture_that_was_left_holds_its_communicator_too() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        with seat.streams.on(seat.streams.begin_capture()):
            follow(seat)
            all_reduce(seat, handle, array)
        with breaks(seat, "abort of communicator 0", "while there is the capture"):
            seat.binding.abort(handle)
        seat.binding.abort(handle)

    run_seats(1, body)
