"""Layer 2, recording stand-in, not NCCL: sums in rank order; NCCL only moves the arrays."""

from __future__ import annotations

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np

from ncclkv.comm.base import Communicator
from ncclkv.comm.nccl import messages
from ncclkv.errors import CommTimeout, RankLost, UsageError
from tests.conformance.capabilities import use_buffers
from tests.conformance.captures_all import CAPTURES
from tests.conformance.communicator_all import CASES, IN_ORDER, SWEEPS
from tests.harness.extent import some_or_all
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.buffers import StandInBuffers
from tests.nccl.standin.direct_calls import F32, breaks, floats, follow, result
from tests.nccl.standin.stores import StandInStores

pytestmark = pytest.mark.limit(60)


def of_nccl(worker: Worker) -> list[str]:
    """Return the reductions that NCCL was called for."""
    kinds = ("all_reduce(", "reduce(", "reduce_scatter(")
    return [line for line in worker.log.lines if line.startswith(kinds)]


EVERY = [(name, *run) for name in IN_ORDER for run in ((3, False), (3, True), (4, True))]
SOME = [each for each in EVERY if each[1] == 3 and (each[2] or each[0] not in SWEEPS)]
"""Names of cases, numbers of ranks, and whether arrays are cut, and short ones shared."""


def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat arrays of a few hundred KiB like arrays of hundreds of MiB."""
    monkeypatch.setattr(messages, "SHORT_BYTES", 1024)
    monkeypatch.setattr(messages, "SCRATCH_BYTES", 300_000)


@pytest.mark.parametrize(("name", "size", "pieces"), some_or_all(SOME, EVERY))
def test_case(monkeypatch: pytest.MonkeyPatch, name: str, size: int, pieces: bool) -> None:
    if pieces:
        cut(monkeypatch)

    def body(worker: Worker) -> None:
        comm = worker.communicator()
        comm.reproducible = True
        with use_buffers(StandInBuffers(worker)):
            CASES[name](comm)
        comm.close()
        assert of_nccl(worker) == []

    run_on_standin(size, body, lazy=True)


@pytest.mark.parametrize("make", [lambda c: c.duplicate(), lambda c: c.split(0)])
def test_splits_and_duplicates_keep_the_order(make: Callable[[Communicator], Communicator]) -> None:
    def body(worker: Worker) -> None:
        comm = worker.communicator()
        comm.reproducible = True
        made = make(comm)
        array = worker.streams.put(np.ones(100_000, np.float32))
        made.allreduce(array, array).wait()
        assert worker.streams.get(array).tolist() == [3.0] * 100_000
        assert of_nccl(worker) == []
        made.close()
        comm.close()

    run_on_standin(3, body)


def test_the_ranks_connect_for_messages_when_the_order_is_set_and_once() -> None:
    def body(worker: Worker) -> None:
        comm = worker.communicator()
        worker.peers.control.barrier("all are there")
        assert not any(line.startswith(("connect", "send(")) for line in worker.log.lines)
        comm.reproducible = True
        comm.reproducible = True
        others = [(worker.rank + 1) % 3, (worker.rank + 2) % 3]
        assert worker.log.lines.count(f"connect communicator 0 with {others}") == 1
        lines = [line for line in worker.log.lines if line.startswith(("send(", "receive("))]
        assert len(lines) == 4
        assert all("count=1, dtype=uint8" in line for line in lines)
        comm.close()

    run_on_standin(3, body)


def test_a_rank_that_does_not_connect_breaks_the_communicator_in_time() -> None:
    def late(*_: object) -> None:
        raise CommTimeout("NCCL 2.32.3: ncclGroupEnd waited 300 s for the other ranks")

    def body(worker: Worker) -> None:
        comm = worker.communicator()
        worker.binding.connect = late  # type: ignore[method-assign]
        words = rf"rank {worker.rank} of 2: connecting the ranks for messages: NCCL 2\.32\.3"
        with pytest.raises(CommTimeout, match=words):
            comm.reproducible = True
        assert not comm.reproducible
        with pytest.raises(CommTimeout, match=words):
            comm.barrier()
        assert any(line.startswith("abort") for line in worker.log.lines)
        worker.peers.control.barrier("the test is over")
        comm.abort("the test is over")

    run_on_standin(2, body)


def test_a_look_at_the_other_ranks_gives_its_own_words() -> None:
    def lost(*arguments: object) -> None:
        *_, look = arguments
        assert callable(look)
        worker_left.wait(5.0)
        for _ in range(100):
            look()
            time.sleep(0.01)

    worker_left = threading.Event()

    def body(worker: Worker) -> None:
        comm = worker.communicator()
        if worker.rank == 0:
            worker.binding.connect = lost  # type: ignore[method-assign]
            with pytest.raises(RankLost) as caught:
                comm.reproducible = True
            words = "rank 0 of 2: rank 1 left while connecting the ranks for messages waited for it"
            assert str(caught.value).startswith(words)
        else:
            comm.abort("enough")
            worker_left.set()
        worker.peers.control.barrier("the test is over")
        comm.abort("the test is over")

    run_on_standin(2, body)


def test_communicators_made_from_another_have_their_own_timeout() -> None:
    def body(worker: Worker) -> None:
        comm = worker.communicator()
        with closing(comm.duplicate(1.5)) as child, closing(child.split(0)) as grandchild:
            assert (child.timeout, grandchild.timeout) == (1.5, 1.5)
            assert worker.binding.timeouts == [1.5, 1.5]
        comm.close()

    run_on_standin(2, body)


def test_a_rank_alone_has_no_order_to_keep() -> None:
    def body(worker: Worker) -> None:
        comm = worker.communicator()
        comm.reproducible = True
        array = worker.streams.put(np.ones(3, np.float32))
        comm.allreduce(array, array).wait()
        assert len(of_nccl(worker)) == 1
        comm.close()

    run_on_standin(1, body)


def test_a_message_alone_is_refused_by_the_stand_in() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1.0)
        stream, peer = worker.streams.communication, 1 - worker.rank
        place = array.data.ptr
        with breaks(worker, "in a group with what comes back"):
            worker.binding.send(handle, place, 1, F32, peer, stream)
        worker.binding.group_start()
        with breaks(worker, "a message goes to another rank"):
            worker.binding.receive(handle, place, 1, F32, worker.rank, stream)
        worker.binding.group_end()

    run_on_standin(2, body)


def test_what_is_sent_and_not_received_is_refused_by_the_stand_in() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1.0, 2.0)
        stream, place = worker.streams.communication, array.data.ptr
        follow(worker)
        words = "rank 0 of communicator 0 sends 8 bytes to rank 1, which receives 4"
        with breaks(worker, words):
            worker.binding.group_start()
            if worker.rank == 0:
                worker.binding.send(handle, place, 2, F32, 1, stream)
            else:
                worker.binding.receive(handle, place, 1, F32, 0, stream)
            worker.binding.group_end()
            result(worker, array)

    run_on_standin(2, body)


class RankOrderStores(StandInStores):
    """A function that opens stores with ``reproducible=True``."""

    def open(self, **options: Any) -> Any:
        return super().open(reproducible=True, **options)


@pytest.mark.parametrize("update_on", ["every_rank", "root"])
@pytest.mark.parametrize("name", ["a_sum_replaces_the_value", "momentum_decay_and_rescaling"])
@pytest.mark.parametrize("shares", [False, True], ids=["gathered", "shares"])
def test_a_step_is_captured(
    monkeypatch: pytest.MonkeyPatch, name: str, update_on: str, shares: bool
) -> None:
    if shares:
        monkeypatch.setattr(
            messages, "SHORT_BYTES", 768
        )  # the stand-in needs a share for each rank

    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), RankOrderStores(worker, update_on) as create:
            CAPTURES[name](create)
        assert of_nccl(worker) == []

    run_on_standin(3, body, lazy=True)


def test_memory_to_work_in_is_there_before_a_capture() -> None:
    def body(worker: Worker) -> None:
        comm, array = worker.communicator(), floats(worker, 1, 2)
        comm.reproducible = True
        comm.synchronize()
        with (
            pytest.raises(UsageError, match="need 8 bytes of scratch.* same step once before it"),
            comm.capture(),
        ):
            comm.allreduce(array, array).wait()
        comm.allreduce(array, array).wait()
        comm.synchronize()
        with comm.capture() as graph:
            comm.allreduce(array, array).wait()
        graph.launch().wait()
        assert worker.streams.get(array).tolist() == [4, 8]
        comm.close()

    run_on_standin(2, body, lazy=True)
