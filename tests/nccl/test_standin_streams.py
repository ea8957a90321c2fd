"""Layer 2, recording stand-in, not NCCL: it refuses accesses without an order, and early frees.

Points 6 and 7 of the contract, each broken on purpose.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.comm.nccl.streams import PER_THREAD
from ncclkv.errors import UsageError
from tests.conformance.overlaps import in_thread
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.direct_calls import all_reduce, breaks, floats, follow, lead, result
from tests.sgd_steps import sgd

pytestmark = pytest.mark.limit(20)
MODES = pytest.mark.parametrize("lazy", [False, True], ids=["prompt", "lazy"])


# Point 6: streams


def test_collectives_keep_off_the_default_stream() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        with breaks(worker, "all_reduce(count=1,", "is on the default stream, 0"):
            all_reduce(worker, handle, array, stream=worker.streams.current())

    run_on_standin(2, body)


def test_a_stream_must_exist() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        with breaks(worker, "stream 0x1234 does not exist"):
            all_reduce(worker, handle, array, stream=0x1234)
        other = worker.streams.another()
        other.close()
        other.close()
        with breaks(worker, "does not exist, or not any more"):
            worker.streams.record(other.communication)

    run_on_standin(1, body)


@MODES
def test_a_collective_must_follow_the_writer_of_its_input(lazy: bool) -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        words = "reads memory 1[0:4], and nothing orders it after a copy from the host on the defa"
        with breaks(worker, "all_reduce 0 of communicator 0 on the communication stream", words):
            all_reduce(worker, handle, array)

    run_on_standin(2, body, lazy=lazy)


def test_an_event_before_the_last_write_is_too_early() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        follow(worker)
        worker.streams.write(array, 2)
        with breaks(worker, "nothing orders it after a copy from the host"):
            all_reduce(worker, handle, array)

    run_on_standin(2, body)


@pytest.mark.parametrize("size", [1, 2])
@MODES
def test_a_reader_follows_the_collective(size: int, lazy: bool) -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        follow(worker)
        all_reduce(worker, handle, array)
        words = "reads memory 1[0:4], and nothing orders it after all_reduce 0 of communicator 0"
        with breaks(worker, "a copy to the host on the default stream", words):
            worker.streams.get(array)

    run_on_standin(size, body, lazy=lazy)


def test_an_input_must_not_change_in_flight() -> None:
    def body(worker: Worker) -> None:
        handle, array, out = worker.create(), floats(worker, 1), floats(worker, 0)
        follow(worker)
        all_reduce(worker, handle, array, out)
        assert worker.streams.get(array).tolist() == [1]  # a read, which is no conflict
        with breaks(worker, "a copy from the host", "which reads memory 1[0:4]"):
            worker.streams.write(array, 5)

    run_on_standin(2, body)


@MODES
def test_an_event_that_the_host_saw_orders_all_later_work(lazy: bool) -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        follow(worker)
        all_reduce(worker, handle, array)
        event = worker.streams.record(worker.streams.communication)
        worker.peers.control.barrier()
        while not event.done():
            pass
        assert worker.streams.get(array).tolist() == [2]

    run_on_standin(2, body, lazy=lazy)


def test_an_event_orders_only_the_work_before_it() -> None:
    def body(worker: Worker) -> None:
        handle, array, other = worker.create(), floats(worker, 1), floats(worker, 1)
        follow(worker)
        all_reduce(worker, handle, array)
        event = worker.streams.record(worker.streams.communication)
        all_reduce(worker, handle, other)
        worker.streams.wait(worker.streams.current(), event)
        assert worker.streams.get(array).tolist() == [2]
        with breaks(worker, "nothing orders it after all_reduce 1 of communicator 0"):
            worker.streams.get(other)

    run_on_standin(2, body)


def test_order_is_passed_on_from_stream_to_stream() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        follow(worker)
        all_reduce(worker, handle, array)
        streams, between = worker.streams, worker.device.stream("a stream between")
        streams.wait(between, streams.record(streams.communication))
        streams.wait(streams.current(), streams.record(between))
        assert streams.get(array).tolist() == [2]

    run_on_standin(2, body)


def test_parts_of_an_array_are_distinguished() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1, 2, 3, 4)
        follow(worker)
        all_reduce(worker, handle, array[1:3])
        worker.streams.write(array[:1], 7)
        worker.streams.write(array[3:], 8)
        with breaks(worker, "writes memory 1[8:12]"):
            worker.streams.write(array[2:3], 9)
        assert result(worker, array) == [7, 4, 6, 8]

    run_on_standin(2, body)


# Kernels


@MODES
def test_kernels_run_in_the_order_of_their_stream(lazy: bool) -> None:
    def body(worker: Worker) -> None:
        handle, kernels, streams = worker.create(), worker.kernels, worker.streams
        weights, slot, momenta = floats(worker, 0, 0), floats(worker, 0, 0), floats(worker, 0, 0)
        kernels.pack(np.array([1, 2], np.float32), slot)
        follow(worker)
        all_reduce(worker, handle, slot)
        step = {"learning_rate": 1.0, "momentum": 0.5, "weight_decay": 0.0, "rescale": 1.0}
        with streams.on(streams.communication):
            sgd(kernels, weights, slot, momenta, clip=None, put=streams.put, **step)
        lead(worker)
        copy = kernels.empty((2,), np.float32)
        kernels.pack_all([weights], [copy])
        assert not lazy or worker.streams.peek(copy).tolist() != [-2, -4]
        out = np.zeros(2, np.float64)
        kernels.unpack(kernels.copy(copy), out)  # out is on the host, so this call waits
        assert out.tolist() == [-2, -4]

    run_on_standin(2, body, lazy=lazy)


def test_a_kernel_that_runs_ahead_is_caught() -> None:
    def body(worker: Worker) -> None:
        handle, array, copy = worker.create(), floats(worker, 1), floats(worker, 0)
        follow(worker)
        all_reduce(worker, handle, array)
        with breaks(worker, "pack on the default stream reads memory 1[0:4]"):
            worker.kernels.pack(array, copy)

    run_on_standin(2, body)


@pytest.mark.parametrize("owner", ["per thread", "made"])
@pytest.mark.parametrize("other", ["per thread", "made"])
def test_a_thread_with_a_default_stream_of_its_own_is_refused(owner: str, other: str) -> None:
    """Check the calls of two threads: an event orders streams with two addresses alone."""

    def body(worker: Worker) -> None:
        streams, comm = worker.streams, worker.communicator()
        chosen = {
            name: PER_THREAD if kind == "per thread" else worker.device.stream(name)
            for name, kind in (("owner", owner), ("other", other))
        }
        streams.current = lambda: chosen["other" if threading.get_ident() != here else "owner"]
        here = threading.get_ident()
        comm.sync_stream()
        comm.sync_stream()
        call = in_thread if owner == other == "made" else refused_in_thread
        call(comm.sync_stream)
        comm.sync_stream()

    def refused_in_thread(sync: Callable[[], None]) -> None:
        words = r"thread 'other' called the store .* enter 'with cupy.cuda.Stream\(\):' in each"
        with pytest.raises(UsageError, match=words):
            in_thread(sync)

    run_on_standin(1, body)


# Point 7: memory lives until the event after its last use


@pytest.mark.parametrize("size", [1, 2])
@MODES
def test_memory_freed_in_flight_is_caught(size: int, lazy: bool) -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        follow(worker)
        all_reduce(worker, handle, array)
        del array
        with breaks(
            worker, "memory 1 was freed while all_reduce 0 of communicator 0", "keep the arr"
        ):
            worker.streams.record(worker.streams.communication)

    run_on_standin(size, body, lazy=lazy)


def test_a_view_keeps_memory_alive() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1, 2)
        follow(worker)
        all_reduce(worker, handle, array)
        kept = array[1:]
        del array
        assert result(worker, kept) == [4]

    run_on_standin(2, body)


@MODES
def test_memory_may_be_freed_where_the_event_is_waited_for(lazy: bool) -> None:
    def body(worker: Worker) -> None:
        handle, array, other = worker.create(), floats(worker, 1), floats(worker, 1)
        follow(worker)
        all_reduce(worker, handle, array)
        lead(worker)  # the next user of the memory is ordered after this
        del array
        all_reduce(worker, handle, other)
        event = worker.streams.record(worker.streams.communication)
        worker.peers.control.barrier()
        while not event.done():
            pass
        del other
        worker.check()

    run_on_standin(2, body, lazy=lazy)
