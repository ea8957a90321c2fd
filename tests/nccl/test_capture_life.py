"""Layer 2, recording stand-in, not NCCL: graphs end before their communicator, in every way."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.comm.nccl import flight
from ncclkv.errors import CommAborted, CommTimeout, RankLost, UsageError
from tests.cases.captures_misuse import Ready
from tests.cases.expect import same, total
from tests.cases.place import at
from tests.nccl.breaking import raises
from tests.nccl.standin import Faults, Seat, run_seats
from tests.nccl.standin.drive import floats
from tests.nccl.standin.place import DevicePlace
from tests.nccl.standin.stores import SeatStores

pytestmark = pytest.mark.limit(30)
PLACEMENTS = pytest.mark.parametrize("update_on", ["every_rank", "root"])


def graphs_of(seat: Seat) -> set[str]:
    """The graphs that hold any communicator."""
    return set().union(*(handle.graphs for handle in seat.binding._handles))


def opened(seat: Seat, update_on: str = "every_rank", **options: Any) -> Ready:
    """A store that nobody closes but the test."""

    def create(**more: Any) -> Any:
        return SeatStores(seat, update_on).open(update_on=update_on, **options, **more)

    return Ready(create)  # type: ignore[arg-type]


def ends(seat: Seat) -> list[str]:
    """How communicators ended, and after which graphs were captured."""
    return [line.split()[0] for line in seat.log.lines if line.startswith(("destroy", "abort"))]


# Ends


@PLACEMENTS
@pytest.mark.parametrize("replays", [0, 2])
def test_a_close_frees_graphs_first(update_on: str, replays: int) -> None:
    def body(seat: Seat) -> None:
        with at(DevicePlace(seat)):
            ready = opened(seat, update_on)
            steps = [ready.step(), ready.step()]
            for step in steps * replays:
                step.replay()
            assert graphs_of(seat) == {"graph 1", "graph 2"}
            ready.kv.close()
            assert not graphs_of(seat)
            assert ends(seat) == ["destroy"]
            for step in steps:
                with pytest.raises(UsageError, match="the store 'nccl' is closed"):
                    step.replay()
                step.close()

    run_seats(3, body, lazy=True)


@pytest.mark.parametrize("replays", [0, 2])
def test_a_store_left_by_an_exception_frees_graphs_first(replays: int) -> None:
    def body(seat: Seat) -> None:
        seat.spoilt = True
        with at(DevicePlace(seat)):
            ready = opened(seat)
            step = ready.step()
            for _ in range(replays):
                step.replay()
            begin = time.monotonic()
            with pytest.raises(ValueError, match="mine"), ready.kv:
                raise ValueError("mine")
            assert time.monotonic() - begin < 2
            assert not graphs_of(seat)
            assert ends(seat) == ["abort"]
            with pytest.raises(UsageError, match="the store 'nccl' is closed"):
                step.replay()

    run_seats(2, body, lazy=True)


def test_a_store_left_in_the_middle_of_a_capture() -> None:
    def body(seat: Seat) -> None:
        seat.spoilt = True
        with at(DevicePlace(seat)):
            ready = opened(seat)

            def leave() -> None:
                with ready.kv:
                    ready.pushpull()
                    raise ZeroDivisionError("mine")

            with pytest.raises(ZeroDivisionError, match="mine"), ready.kv.capture() as step:
                leave()
            with pytest.raises(UsageError, match="is closed"):
                step.replay()
            assert not graphs_of(seat)
            assert seat.device.capture is None
            assert ends(seat) == ["abort"]

    run_seats(2, body, lazy=True)


def test_the_end_of_the_process_frees_graphs_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "_open", set())  # those of other tests are not this one's affair

    def body(seat: Seat) -> None:
        with at(DevicePlace(seat)):
            ready = opened(seat)
            step = ready.step()
            flight._abort_all()
            assert ends(seat) == ["abort"]
            with raises(CommAborted, "without closing the communicator"):
                step.replay()

    run_seats(1, body)


def test_a_dropped_step_is_freed_with_its_arrays() -> None:
    def body(seat: Seat) -> None:
        with at(DevicePlace(seat)):
            ready = opened(seat)
            out = floats(seat, *[0.0] * 6).reshape(2, 3)
            alive = weakref.ref(out)
            with ready.kv.capture() as step:
                ready.kv.push(3, ready.gradients[0])
                ready.kv.pull(3, out=out)
            del out
            gc.collect()
            assert alive() is not None, "the captured step does not keep its arrays"
            step.replay()
            same(alive(), total(ready.kv))
            ready.kv.wait()
            del step
            gc.collect()
            assert alive() is None
            assert not graphs_of(seat)
            ready.kv.close()

    run_seats(2, body, lazy=True)


@pytest.mark.parametrize("how", ["close", "drop", "drop the store"])
def test_a_step_that_is_let_go_of_in_flight_is_done_first(how: str) -> None:
    def body(seat: Seat) -> None:
        other = seat.device.stream("another stream")
        with at(DevicePlace(seat)):
            ready = opened(seat)
            kv, outs = ready.kv, ready.outs
            step = ready.step()
            for out in outs:
                seat.streams.write(out, -1)
            # On a stream for which the memory of the arrays, once it is free, does not wait.
            seat.streams.wait(other, seat.streams.record(seat.streams.current()))
            with seat.streams.on(other):
                step.replay()
            if how == "close":
                step.close()
            del step, ready.gradients[:], out
            if how == "drop the store":
                seat.spoilt = True  # the others' ends of the store are gone as well
                del kv, ready
            gc.collect()
            assert graphs_of(seat) == {"graph 1"}
            seat.device.check()
            with seat.streams.on(other):
                same(outs[1], 10 * seat.size * (seat.size + 1) / 2)
            if how == "drop the store":
                seat.peers.control.barrier()
                return
            kv.wait()
            assert not graphs_of(seat)
            kv.close()

    run_seats(2, body, lazy=True)


# Failures


@pytest.mark.parametrize("lazy", [False, True], ids=["prompt", "lazy"])
def test_a_rank_that_never_comes_to_a_replay_is_a_timeout(lazy: bool) -> None:
    def body(seat: Seat) -> None:
        seat.spoilt = True
        with at(DevicePlace(seat)):
            ready = opened(seat, timeout=0.3)
            step = ready.step()
            step.replay()
            with pytest.raises(CommTimeout) as caught:
                ready.kv.wait()
            text = str(caught.value)
            assert f"rank {seat.rank} of 2: a captured step (collectives: 1) waited 0." in text
            assert not graphs_of(seat)
            assert ends(seat) == ["abort"]
            with pytest.raises(CommTimeout):
                step.replay()
            seat.peers.control.barrier()
            ready.kv.close()

    # After the first values, and the step that was made once.
    run_seats(2, body, lazy=lazy, faults={1: Faults(absent_from=2)})


def test_a_rank_that_left_is_lost_to_a_replay() -> None:
    def body(seat: Seat) -> None:
        seat.spoilt = True
        with at(DevicePlace(seat)):
            ready = opened(seat)
            step = ready.step()
            if seat.rank == 1:
                with pytest.raises(ValueError, match="mine"), ready.kv:
                    raise ValueError("mine")
                return
            step.replay()
            words = "rank 1 left while a captured step .collectives: 1. waited for it; it said: Val"
            with pytest.raises(RankLost, match=words):
                ready.kv.wait()
            assert not graphs_of(seat)
            ready.kv.close()

    run_seats(2, body, lazy=True)


def test_a_failure_of_nccl_in_a_capture_breaks_the_store() -> None:
    def body(seat: Seat) -> None:
        seat.spoilt = True
        with at(DevicePlace(seat)):
            ready = opened(seat)

            def fail(*numbers: int) -> None:
                raise CommAborted("NCCL 2.29.7: ncclAllReduce failed")

            whole, seat.binding.all_reduce = seat.binding.all_reduce, fail
            with (
                pytest.raises(CommAborted, match="ncclAllReduce failed"),
                ready.kv.capture() as step,
            ):
                ready.pushpull()
            seat.binding.all_reduce = whole
            assert seat.device.capture is None
            assert ends(seat) == ["abort"]
            for call in (step.replay, ready.pushpull):
                with pytest.raises(CommAborted, match="ncclAllReduce failed"):
                    call()
            ready.kv.close()

    run_seats(2, body, lazy=True)


@PLACEMENTS
def test_an_exception_in_the_block_leaves_nothing_to_be_given_to_all(update_on: str) -> None:
    def body(seat: Seat) -> None:
        with at(DevicePlace(seat)):
            ready = opened(seat, update_on)

            def fail() -> None:
                ready.kv.push(ready.keys, ready.gradients)
                raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError), ready.kv.capture():
                fail()
            with seat.calls() as lines:
                ready.kv.pull(ready.keys, out=ready.outs)
            assert [line.split()[0] for line in lines[1:]] == ["unpack_all"]
            ready.kv.close()

    run_seats(2, body, lazy=True)


# Streams


@PLACEMENTS
def test_replays_follow_the_current_stream(update_on: str) -> None:
    def body(seat: Seat) -> None:
        other = seat.device.stream("another stream")
        with at(DevicePlace(seat)), SeatStores(seat, update_on) as create:
            ready = Ready(create)
            kv, streams = ready.kv, seat.streams
            step = ready.step()
            streams.wait(other, streams.record(streams.current()))
            with streams.on(other):
                streams.write(ready.gradients[0], kv.rank + 5)
                step.replay()
                same(ready.outs[0], total(kv) + 4 * kv.num_workers)
                streams.write(ready.gradients[0], kv.rank + 6)
            # Back on the first stream, behind what the other one was given.
            step.replay()
            same(ready.outs[0], total(kv) + 5 * kv.num_workers)
            with streams.on(other):
                kv.pushpull(ready.keys, ready.gradients, ready.outs)
                same(ready.outs[0], total(kv) + 5 * kv.num_workers)

    run_seats(3, body, lazy=True)


def test_what_the_user_reads_without_order_is_caught() -> None:
    def body(seat: Seat) -> None:
        other = seat.device.stream("another stream")
        with at(DevicePlace(seat)):
            ready = opened(seat)
            step = ready.step()
            step.replay()
            with (
                pytest.raises(AssertionError, match="nothing orders it after unpack_all"),
                seat.streams.on(other),
            ):
                seat.streams.get(ready.outs[0])
            seat.spoilt = True
            seat.device.mend()

    run_seats(2, body, lazy=True)


# The communicator by itself


def test_a_communicator_captures() -> None:
    def body(seat: Seat) -> None:
        comm, array = seat.communicator(), floats(seat, 1, 2)
        comm.synchronize()
        with comm.capture() as graph:
            work = comm.allreduce(array, array)
            work.label = "mine"
            work.wait()
            with pytest.raises(UsageError, match="synchronize was called inside a capture"):
                comm.synchronize()
            with pytest.raises(UsageError, match="capture was called inside a capture"):
                comm.capture().__enter__()
            with pytest.raises(UsageError, match="the launch of a graph was called inside a cap"):
                graph.launch()
            kept = np.zeros(1)
            comm.keep(kept)
            assert any(kept is each for each in graph._kept)  # type: ignore[attr-defined]
        assert graph.calls == ["a reduction of 8 bytes to all ranks (mine)"]
        assert work.done()
        work.wait()
        assert seat.streams.get(array).tolist() == [1, 2]
        done = graph.launch()
        assert str(done) == "a captured step (collectives: 1)"
        done.wait()
        assert seat.streams.get(array).tolist() == [2, 4]
        comm.close()
        with pytest.raises(UsageError, match="the communicator is closed"):
            graph.launch()

    run_seats(2, body, lazy=True)


def test_a_graph_without_an_end_is_none() -> None:
    def body(seat: Seat) -> None:
        comm, array = seat.communicator(), floats(seat, 1)
        comm.synchronize()

        def fail() -> None:
            comm.allreduce(array, array)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError), comm.capture() as graph:
            fail()
        with pytest.raises(UsageError, match="was not captured to its end, or was freed"):
            graph.launch()
        comm.allreduce(array, array).wait()
        assert seat.streams.get(array).tolist() == [2]
        comm.close()

    run_seats(2, body, lazy=True)


def test_a_wait_that_cuda_refuses_in_a_capture_costs_the_graph_alone() -> None:
    def body(seat: Seat) -> None:
        comm, array = seat.communicator(), floats(seat, 1)
        comm.synchronize()
        wait = seat.streams.wait

        def refuse(stream: int, event: Any) -> None:
            raise UsageError("CUDA refuses this in a capture")

        def fail() -> None:
            work = comm.allreduce(array, array)
            seat.streams.wait = refuse  # type: ignore[method-assign]
            work.wait()

        with pytest.raises(UsageError, match="CUDA refuses this"), comm.capture():
            fail()
        seat.streams.wait = wait  # type: ignore[method-assign]
        comm.allreduce(array, array).wait()
        assert seat.streams.get(array).tolist() == [2]
        comm.close()

    run_seats(2, body, lazy=True)
