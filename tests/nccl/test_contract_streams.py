"""Layer 2, recording stand-in, not NCCL: it refuses accesses without an order, and early frees.

Points 6 and 7 of the contract, each broken on purpose.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from tests.nccl.standin import Seat, run_seats
from tests.nccl.standin.drive import all_reduce, breaks, floats, follow, lead, result
from tests.updates import sgd

pytestmark = pytest.mark.limit(20)
MODES = pytest.mark.parametrize("lazy", [False, True], ids=["prompt", "lazy"])


# Point 6: streams


def test_collectives_keep_off_the_default_stream() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        with breaks(seat, "all_reduce(count=1,", "is on the default stream, 0"):
            all_reduce(seat, handle, array, stream=seat.streams.current())

    run_seats(2, body)


def test_a_stream_must_exist() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        with breaks(seat, "stream 0x1234 does not exist"):
            all_reduce(seat, handle, array, stream=0x1234)
        other = seat.streams.another()
        other.close()
        other.close()
        with breaks(seat, "does not exist, or not any more"):
            seat.streams.record(other.communication)

    run_seats(1, body)


@MODES
def test_a_collective_follows_who_wrote_its_input(lazy: bool) -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        words = "reads memory 1[0:4], and nothing orders it after a copy from the host on the defa"
        with breaks(seat, "all_reduce 0 of communicator 0 on the communication stream", words):
            all_reduce(seat, handle, array)

    run_seats(2, body, lazy=lazy)


def test_an_event_before_the_last_write_does_not_do() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        follow(seat)
        seat.streams.write(array, 2)
        with breaks(seat, "nothing orders it after a copy from the host"):
            all_reduce(seat, handle, array)

    run_seats(2, body)


@pytest.mark.parametrize("size", [1, 2])
@MODES
def test_a_reader_follows_the_collective(size: int, lazy: bool) -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        follow(seat)
        all_reduce(seat, handle, array)
        words = "reads memory 1[0:4], and nothing orders it after all_reduce 0 of communicator 0"
        with breaks(seat, "a copy to the host on the default stream", words):
            seat.streams.get(array)

    run_seats(size, body, lazy=lazy)


def test_an_input_is_not_changed_on_the_way() -> None:
    def body(seat: Seat) -> None:
        handle, array, out = seat.create(), floats(seat, 1), floats(seat, 0)
        follow(seat)
        all_reduce(seat, handle, array, out)
        assert seat.streams.get(array).tolist() == [1]  # a read, which is no conflict
        with breaks(seat, "a copy from the host", "which reads memory 1[0:4]"):
            seat.streams.write(array, 5)

    run_seats(2, body)


@MODES
def test_an_event_that_the_host_saw_orders_all_that_it_queues_next(lazy: bool) -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        follow(seat)
        all_reduce(seat, handle, array)
        event = seat.streams.record(seat.streams.communication)
        seat.peers.control.barrier()
        while not event.done():
            pass
        assert seat.streams.get(array).tolist() == [2]

    run_seats(2, body, lazy=lazy)


def test_an_event_orders_what_came_before_it_alone() -> None:
    def body(seat: Seat) -> None:
        handle, array, other = seat.create(), floats(seat, 1), floats(seat, 1)
        follow(seat)
        all_reduce(seat, handle, array)
        event = seat.streams.record(seat.streams.communication)
        all_reduce(seat, handle, other)
        seat.streams.wait(seat.streams.current(), event)
        assert seat.streams.get(array).tolist() == [2]
        with breaks(seat, "nothing orders it after all_reduce 1 of communicator 0"):
            seat.streams.get(other)

    run_seats(2, body)


def test_order_is_passed_on_from_stream_to_stream() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        follow(seat)
        all_reduce(seat, handle, array)
        streams, between = seat.streams, seat.device.stream("a stream between")
        streams.wait(between, streams.record(streams.communication))
        streams.wait(streams.current(), streams.record(between))
        assert streams.get(array).tolist() == [2]

    run_seats(2, body)


def test_parts_of_an_array_are_told_apart() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1, 2, 3, 4)
        follow(seat)
        all_reduce(seat, handle, array[1:3])
        seat.streams.write(array[:1], 7)
        seat.streams.write(array[3:], 8)
        with breaks(seat, "writes memory 1[8:12]"):
            seat.streams.write(array[2:3], 9)
        assert result(seat, array) == [7, 4, 6, 8]

    run_seats(2, body)


# Kernels


@MODES
def test_kernels_run_in_the_order_of_their_stream(lazy: bool) -> None:
    def body(seat: Seat) -> None:
        handle, kernels, streams = seat.create(), seat.kernels, seat.streams
        weights, slot, momenta = floats(seat, 0, 0), floats(seat, 0, 0), floats(seat, 0, 0)
        kernels.pack(np.array([1, 2], np.float32), slot)
        follow(seat)
        all_reduce(seat, handle, slot)
        step = {"learning_rate": 1.0, "momentum": 0.5, "weight_decay": 0.0, "rescale": 1.0}
        with streams.on(streams.communication):
            sgd(kernels, weights, slot, momenta, clip=None, put=streams.put, **step)
        lead(seat)
        copy = kernels.empty((2,), np.float32)
        kernels.pack_all([weights], [copy])
        assert not lazy or seat.streams.peek(copy).tolist() != [-2, -4]
        out = np.zeros(2, np.float64)
        kernels.unpack(kernels.copy(copy), out)  # out is on the host, so this call waits
        assert out.tolist() == [-2, -4]

    run_seats(2, body, lazy=lazy)


def test_a_kernel_that_runs_ahead_is_caught() -> None:
    def body(seat: Seat) -> None:
        handle, array, copy = seat.create(), floats(seat, 1), floats(seat, 0)
        follow(seat)
        all_reduce(seat, handle, array)
        with breaks(seat, "pack on the default stream reads memory 1[0:4]"):
            seat.kernels.pack(array, copy)

    run_seats(2, body)


# Point 7: memory lives until the event after its last use


@pytest.mark.parametrize("size", [1, 2])
@MODES
def test_memory_freed_in_flight_is_caught(size: int, lazy: bool) -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        follow(seat)
        all_reduce(seat, handle, array)
        del array
        with breaks(
            seat, "memory 1 was freed while all_reduce 0 of communicator 0", "keep the arr"
        ):
            seat.streams.record(seat.streams.communication)

    run_seats(size, body, lazy=lazy)


def test_a_view_keeps_memory_alive() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1, 2)
        follow(seat)
        all_reduce(seat, handle, array)
        kept = array[1:]
        del array
        assert result(seat, kept) == [4]

    run_seats(2, body)


@MODES
def test_memory_may_be_freed_where_the_event_is_waited_for(lazy: bool) -> None:
    def body(seat: Seat) -> None:
        handle, array, other = seat.create(), floats(seat, 1), floats(seat, 1)
        follow(seat)
        all_reduce(seat, handle, array)
        lead(seat)  # the next user of the memory is ordered after this
        del array
        all_reduce(seat, handle, other)
        event = seat.streams.record(seat.streams.communication)
        seat.peers.control.barrier()
        while not event.done():
            pass
        del other
        seat.check()

    run_seats(2, body, lazy=lazy)
