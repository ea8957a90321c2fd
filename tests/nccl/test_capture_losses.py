"""Layer 2, recording stand-in, not NCCL: captures and replays that fail."""

from __future__ import annotations

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.errors import CommAborted, CommTimeout, RankLost
from tests.conformance.capabilities import use_buffers
from tests.nccl.captures import ends, graphs_of, opened
from tests.nccl.standin import Faults, Worker, run_on_standin
from tests.nccl.standin.buffers import StandInBuffers

pytestmark = pytest.mark.limit(30)
PLACEMENTS = pytest.mark.parametrize("update_on", ["every_rank", "root"])


@pytest.mark.parametrize("lazy", [False, True], ids=["prompt", "lazy"])
def test_a_rank_that_does_not_replay_is_a_timeout(lazy: bool) -> None:
    def body(worker: Worker) -> None:
        worker.broken_on_purpose = True
        with use_buffers(StandInBuffers(worker)):
            ready = opened(worker, timeout=0.3)
            step = ready.step()
            step.replay()
            with pytest.raises(CommTimeout) as caught:
                ready.kv.wait()
            text = str(caught.value)
            assert f"rank {worker.rank} of 2: a captured step (collectives: 1) waited 0." in text
            assert not graphs_of(worker)
            assert ends(worker) == ["abort"]
            with pytest.raises(CommTimeout):
                step.replay()
            worker.peers.control.barrier()
            ready.kv.close()

    # After the first values, and one step without a capture.
    run_on_standin(2, body, lazy=lazy, faults={1: Faults(absent_from=2)})


def test_a_rank_that_left_is_lost_to_a_replay() -> None:
    def body(worker: Worker) -> None:
        worker.broken_on_purpose = True
        with use_buffers(StandInBuffers(worker)):
            ready = opened(worker)
            step = ready.step()
            if worker.rank == 1:
                with pytest.raises(ValueError, match="mine"), ready.kv:
                    raise ValueError("mine")
                return
            step.replay()
            words = (
                "rank 1 left while a captured step .collectives: 1. waited for it; farewell: Val"
            )
            with pytest.raises(RankLost, match=words):
                ready.kv.wait()
            assert not graphs_of(worker)
            ready.kv.close()

    run_on_standin(2, body, lazy=True)


def test_a_failure_of_nccl_in_a_capture_breaks_the_store() -> None:
    def body(worker: Worker) -> None:
        worker.broken_on_purpose = True
        with use_buffers(StandInBuffers(worker)):
            ready = opened(worker)

            def fail(*numbers: int) -> None:
                raise CommAborted("NCCL 2.29.7: ncclAllReduce failed")

            whole, worker.binding.all_reduce = worker.binding.all_reduce, fail
            with (
                pytest.raises(CommAborted, match="ncclAllReduce failed"),
                ready.kv.capture() as step,
            ):
                ready.pushpull()
            worker.binding.all_reduce = whole
            assert worker.device.capture is None
            assert ends(worker) == ["abort"]
            for call in (step.replay, ready.pushpull):
                with pytest.raises(CommAborted, match="ncclAllReduce failed"):
                    call()
            ready.kv.close()

    run_on_standin(2, body, lazy=True)


@PLACEMENTS
def test_an_exception_in_the_block_leaves_nothing_to_publish(update_on: str) -> None:
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)):
            ready = opened(worker, update_on)

            def fail() -> None:
                ready.kv.push(ready.keys, ready.gradients)
                raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError), ready.kv.capture():
                fail()
            with worker.calls() as lines:
                ready.kv.pull(ready.keys, out=ready.outs)
            assert [line.split()[0] for line in lines[1:]] == ["unpack_all"]
            ready.kv.close()

    run_on_standin(2, body, lazy=True)
