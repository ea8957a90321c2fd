"""Layer 2, recording stand-in, not NCCL: graphs are freed before their communicator, always."""

from __future__ import annotations

import gc
import time
import weakref

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.comm.nccl import progress
from ncclkv.errors import CommAborted, UsageError
from tests.conformance.capabilities import at
from tests.conformance.expect import same, total
from tests.nccl.breaking import raises
from tests.nccl.captures import ends, graphs_of, opened
from tests.nccl.standin import Seat, run_seats
from tests.nccl.standin.capabilities import DevicePlace
from tests.nccl.standin.drive import floats

pytestmark = pytest.mark.limit(30)
PLACEMENTS = pytest.mark.parametrize("update_on", ["every_rank", "root"])


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
    monkeypatch.setattr(progress, "_open", set())  # communicators of other tests are not counted

    def body(seat: Seat) -> None:
        with at(DevicePlace(seat)):
            ready = opened(seat)
            step = ready.step()
            progress._abort_all()
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


def test_a_graph_that_an_abort_frees_in_flight_keeps_its_arrays() -> None:
    """Check that arrays live until NCCL has been stopped, since its kernels read them."""

    def body(seat: Seat) -> None:
        comm, array = seat.communicator(), floats(seat, 1)
        with comm.capture() as graph:
            comm.allreduce(array, array).wait()
        graph.launch()
        alive = weakref.ref(array)
        del array
        comm.abort("enough")
        assert alive() is not None
        seat.spoilt = True

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
            # A stream without the event that frees the arrays' memory.
            seat.streams.wait(other, seat.streams.record(seat.streams.current()))
            with seat.streams.on(other):
                step.replay()
            if how == "close":
                step.close()
            del step, ready.gradients[:], out
            if how == "drop the store":
                seat.spoilt = True  # the other ranks' ends of the store are closed, too
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
