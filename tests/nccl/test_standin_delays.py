"""Layer 2, recording stand-in, not NCCL: no work runs before a wait, and the results show it.

Point 2 of the contract.
"""

from __future__ import annotations

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.direct_calls import all_reduce, floats, follow, lead, poisoned, result

pytestmark = pytest.mark.limit(20)
MODES = pytest.mark.parametrize("lazy", [False, True], ids=["prompt", "lazy"])


@MODES
def test_nothing_happens_before_the_outermost_group_ends(lazy: bool) -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1, 2)
        follow(worker)
        worker.binding.group_start()
        worker.binding.group_start()
        all_reduce(worker, handle, array)
        worker.binding.group_end()
        worker.peers.control.barrier()
        assert worker.streams.peek(array).tolist() == [1, 2]
        worker.binding.group_end()
        assert not lazy or poisoned(worker, array)
        assert result(worker, array) == [2, 4]

    run_on_standin(2, body, lazy=lazy)


def test_a_lazy_device_holds_outputs_back_until_the_host_waits() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1, 2)
        follow(worker)
        all_reduce(worker, handle, array)
        event = worker.streams.record(worker.streams.communication)
        lead(worker)
        for _ in range(3):  # more calls, at which a prompt device would advance
            floats(worker, 0)
            assert poisoned(worker, array)
        assert not event.done()
        assert poisoned(worker, array)
        worker.peers.control.barrier()  # all ranks have launched; a wait advances every device
        while not event.done():
            pass
        assert worker.streams.peek(array).tolist() == result(worker, array) == [2, 4]

    run_on_standin(2, body, lazy=True)


def test_a_prompt_device_advances_at_every_call() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1, 2)
        follow(worker)
        all_reduce(worker, handle, array)
        while poisoned(worker, array):
            floats(worker, 0)
        assert worker.streams.peek(array).tolist() == result(worker, array) == [2, 4]

    run_on_standin(2, body)


@MODES
def test_a_rank_alone_does_not_wait_for_the_group(lazy: bool) -> None:
    def body(worker: Worker) -> None:
        handle, array, out = worker.create(), floats(worker, 1, 2), floats(worker, 0, 0)
        follow(worker)
        worker.binding.group_start()
        all_reduce(worker, handle, array, out)
        assert worker.streams.peek(out).tolist() == [1, 2]
        worker.binding.group_end()
        assert result(worker, out) == result(worker, array)

    run_on_standin(1, body, lazy=lazy)


@MODES
def test_later_work_on_the_stream_reads_the_sum(lazy: bool) -> None:
    def body(worker: Worker) -> None:
        handle, array, copy = worker.create(), floats(worker, 1, 2), floats(worker, 0, 0)
        follow(worker)
        all_reduce(worker, handle, array)
        with worker.streams.on(worker.streams.communication):
            worker.kernels.pack(array, copy)
            assert not lazy or worker.streams.peek(copy).tolist() == [0, 0]
            assert worker.streams.get(copy).tolist() == [3, 6]

    run_on_standin(3, body, lazy=lazy)


@MODES
def test_a_device_moves_while_the_host_waits_for_something_else(lazy: bool) -> None:
    """Check that a rank in a barrier advances the collectives that its peers wait for."""

    def body(worker: Worker) -> None:
        handle, array, other = worker.create(), floats(worker, 1), floats(worker, 5)
        follow(worker)
        all_reduce(worker, handle, array)
        all_reduce(worker, handle, other)  # begins after the end of the first, on every rank
        if worker.rank:
            assert result(worker, other) == [10]
        worker.peers.control.barrier()
        assert result(worker, array) == [2]

    run_on_standin(2, body, lazy=lazy)
