"""Layer 2, recording stand-in, not NCCL: graphs are freed before their communicator, always."""

from __future__ import annotations

import gc
import time
import weakref

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.comm.nccl import lifetime
from ncclkv.errors import CommAborted, UsageError
from tests.conformance.capabilities import use_buffers
from tests.conformance.expect import same, total
from tests.nccl.broken_communicators import raises
from tests.nccl.captures import ends, graphs_of, opened
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.buffers import StandInBuffers
from tests.nccl.standin.direct_calls import floats

pytestmark = pytest.mark.limit(30)
PLACEMENTS = pytest.mark.parametrize("update_on", ["every_rank", "root"])


@PLACEMENTS
@pytest.mark.parametrize("replays", [0, 2])
def test_a_close_frees_graphs_first(update_on: str, replays: int) -> None:
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)):
            ready = opened(worker, update_on)
            steps = [ready.step(), ready.step()]
            for step in steps * replays:
                step.replay()
            assert graphs_of(worker) == {"graph 1", "graph 2"}
            ready.kv.close()
            assert not graphs_of(worker)
            assert ends(worker) == ["destroy"]
            for step in steps:
                with pytest.raises(UsageError, match="the store 'nccl' is closed"):
                    step.replay()
                step.close()

    run_on_standin(3, body, lazy=True)


@pytest.mark.parametrize("replays", [0, 2])
def test_a_store_left_by_an_exception_frees_graphs_first(replays: int) -> None:
    def body(worker: Worker) -> None:
        worker.broken_on_purpose = True
        with use_buffers(StandInBuffers(worker)):
            ready = opened(worker)
            step = ready.step()
            for _ in range(replays):
                step.replay()
            begin = time.monotonic()
            with pytest.raises(ValueError, match="mine"), ready.kv:
                raise ValueError("mine")
            assert time.monotonic() - begin < 2
            assert not graphs_of(worker)
            assert ends(worker) == ["abort"]
            with pytest.raises(UsageError, match="the store 'nccl' is closed"):
                step.replay()

    run_on_standin(2, body, lazy=True)


def test_a_store_left_in_the_middle_of_a_capture() -> None:
    def body(worker: Worker) -> None:
        worker.broken_on_purpose = True
        with use_buffers(StandInBuffers(worker)):
            ready = opened(worker)

            def leave() -> None:
                with ready.kv:
                    ready.pushpull()
                    raise ZeroDivisionError("mine")

            with pytest.raises(ZeroDivisionError, match="mine"), ready.kv.capture() as step:
                leave()
            with pytest.raises(UsageError, match="is closed"):
                step.replay()
            assert not graphs_of(worker)
            assert worker.device.capture is None
            assert ends(worker) == ["abort"]

    run_on_standin(2, body, lazy=True)


def test_the_end_of_the_process_frees_graphs_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "_open", set())  # communicators of other tests are not counted

    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)):
            ready = opened(worker)
            step = ready.step()
            lifetime._abort_all()
            assert ends(worker) == ["abort"]
            with raises(CommAborted, "without closing the communicator"):
                step.replay()

    run_on_standin(1, body)


def test_a_dropped_step_is_freed_with_its_arrays() -> None:
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)):
            ready = opened(worker)
            out = floats(worker, *[0.0] * 6).reshape(2, 3)
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
            assert not graphs_of(worker)
            ready.kv.close()

    run_on_standin(2, body, lazy=True)


def test_a_graph_that_an_abort_frees_in_flight_keeps_its_arrays() -> None:
    """Check that arrays live until NCCL has been stopped, since its kernels read them."""

    def body(worker: Worker) -> None:
        comm, array = worker.communicator(), floats(worker, 1)
        with comm.capture() as graph:
            comm.allreduce(array, array).wait()
        graph.launch()
        alive = weakref.ref(array)
        del array
        comm.abort("enough")
        assert alive() is not None
        worker.broken_on_purpose = True

    run_on_standin(2, body, lazy=True)


@pytest.mark.parametrize("how", ["close", "drop", "drop the store"])
def test_a_step_released_in_flight_completes_first(how: str) -> None:
    def body(worker: Worker) -> None:
        other = worker.device.stream("another stream")
        with use_buffers(StandInBuffers(worker)):
            ready = opened(worker)
            kv, outs = ready.kv, ready.outs
            step = ready.step()
            for out in outs:
                worker.streams.write(out, -1)
            # A stream without the event that frees the arrays' memory.
            worker.streams.wait(other, worker.streams.record(worker.streams.current()))
            with worker.streams.on(other):
                step.replay()
            if how == "close":
                step.close()
            del step, ready.gradients[:], out
            if how == "drop the store":
                worker.broken_on_purpose = True  # the other ranks' stores close, too
                del kv, ready
            gc.collect()
            assert graphs_of(worker) == {"graph 1"}
            worker.device.check()
            with worker.streams.on(other):
                same(outs[1], 10 * worker.size * (worker.size + 1) / 2)
            if how == "drop the store":
                worker.peers.control.barrier()
                return
            kv.wait()
            assert not graphs_of(worker)
            kv.close()

    run_on_standin(2, body, lazy=True)
