"""Layer 2, recording stand-in, not NCCL: launches that a communicator compares, drops and keeps."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.comm.control import CallDigest
from ncclkv.comm.nccl.communicator import NcclCommunicator
from ncclkv.comm.types import Work
from ncclkv.errors import OrderMismatch
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.direct_calls import floats

pytestmark = pytest.mark.limit(30)


class LateBarrier(Work):
    """A barrier of the hosts that is incomplete until the wait for it."""

    def __init__(self) -> None:
        self.limits: list[float | None] = []

    def done(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> None:
        self.limits.append(timeout)
        raise OrderMismatch("rank 1 called something else")


class LatePeers:
    """A host communicator with late barriers, and a call digest set by the test."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self.digest = CallDigest()
        self.late = LateBarrier()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def barrier(self) -> Work:
        return self.late


def test_a_wait_ends_when_the_hosts_have_compared_their_calls() -> None:
    """Check a device that is done at once, so that the host barrier alone is waited for."""

    def body(worker: Worker) -> None:
        peers = LatePeers(worker.peers.duplicate())
        comm = NcclCommunicator(peers, worker.binding, worker.streams, worker.kernels)
        array = floats(worker, 1, 2)
        peers.digest.value = 7
        comm.allreduce(array, array).wait()
        with pytest.raises(OrderMismatch, match="rank 1 called something else"):
            comm.synchronize(5.0)
        assert peers.late.limits == [5.0]
        worker.broken_on_purpose = True

    run_on_standin(2, body)


def test_what_is_complete_is_dropped_by_later_launches() -> None:
    """Check that complete works are dropped by later launches, without a wait of the host."""

    def body(worker: Worker) -> int:
        comm = worker.communicator()
        alive: list[weakref.ref[Any]] = []
        for _ in range(10):
            array = floats(worker, 1, 2)
            alive.append(weakref.ref(array))
            comm.allreduce(array, array)
            end = worker.streams.record(worker.streams.communication)
            while not end.done():
                time.sleep(1e-4)
            del array
        gc.collect()
        count = sum(each() is not None for each in alive)
        comm.close()
        return count

    assert max(run_on_standin(2, body)) <= 2


@pytest.mark.parametrize("reproducible", [False, True])
def test_a_graph_keeps_the_arrays_of_its_collectives(reproducible: bool) -> None:
    def body(worker: Worker) -> None:
        comm: NcclCommunicator = worker.communicator()
        comm.reproducible = reproducible
        send, receive = floats(worker, 1, 2), floats(worker, 0, 0)
        comm.allreduce(send, receive).wait()
        comm.synchronize()
        with comm.capture() as graph:
            comm.allreduce(send, receive).wait()
        arrays = weakref.ref(send), weakref.ref(receive)
        del send, receive
        gc.collect()
        assert all(each() is not None for each in arrays)
        graph.launch().wait()
        comm.synchronize()
        assert worker.streams.get(arrays[1]()).tolist() == [2, 4]
        del graph
        gc.collect()
        assert all(each() is None for each in arrays), "a graph that is gone keeps arrays"
        comm.close()

    run_on_standin(2, body, lazy=True)


def test_a_graph_keeps_the_room_that_sums_in_rank_order_take() -> None:
    """Check that a graph keeps its scratch memory after a longer sum has allocated more."""

    def body(worker: Worker) -> None:
        comm: NcclCommunicator = worker.communicator()
        comm.reproducible = True
        array = floats(worker, 1, 2)
        comm.allreduce(array, array).wait()
        comm.synchronize()
        with comm.capture() as graph:
            comm.allreduce(array, array).wait()
        longer = floats(worker, *[1.0] * 50_000)
        comm.allreduce(longer, longer).wait()
        comm.synchronize()
        gc.collect()
        graph.launch().wait()
        comm.synchronize()
        assert worker.streams.get(array).tolist() == [4, 8]
        comm.close()

    run_on_standin(2, body, lazy=True)
