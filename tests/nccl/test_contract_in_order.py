"""Layer 2, recording stand-in, not NCCL: sums in rank order; NCCL only moves the arrays."""

from __future__ import annotations

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from collections.abc import Callable
from typing import Any

import numpy as np

from ncclkv.comm.base import Communicator
from ncclkv.comm.nccl import ordered_reduce
from ncclkv.errors import CommTimeout, UsageError
from tests.conformance.capabilities import at
from tests.conformance.captures_all import CAPTURES
from tests.conformance.communicator_all import CASES, IN_ORDER
from tests.conformance.covering import some_or_all
from tests.nccl.standin import Seat, run_seats
from tests.nccl.standin.capabilities import DevicePlace
from tests.nccl.standin.drive import F32, breaks, floats, follow, result
from tests.nccl.standin.stores import SeatStores

pytestmark = pytest.mark.limit(60)


def of_nccl(seat: Seat) -> list[str]:
    """Return the reductions that NCCL was called for."""
    kinds = ("all_reduce(", "reduce(", "reduce_scatter(")
    return [line for line in seat.log.lines if line.startswith(kinds)]


RUNS = some_or_all([(3, False), (3, True)], [(3, False), (3, True), (4, True)])
"""Numbers of ranks, and whether arrays are cut into pieces, and short ones into shares."""


def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat arrays of a few hundred KiB like arrays of hundreds of MiB."""
    monkeypatch.setattr(ordered_reduce, "SHORT_BYTES", 1024)
    monkeypatch.setattr(ordered_reduce, "SCRATCH_BYTES", 300_000)


@pytest.mark.parametrize(("size", "pieces"), RUNS)
@pytest.mark.parametrize("name", IN_ORDER)
def test_case(monkeypatch: pytest.MonkeyPatch, name: str, size: int, pieces: bool) -> None:
    if pieces:
        cut(monkeypatch)

    def body(seat: Seat) -> None:
        comm = seat.communicator()
        comm.reproducible = True
        with at(DevicePlace(seat)):
            CASES[name](comm)
        comm.close()
        assert of_nccl(seat) == []

    run_seats(size, body, lazy=True)


@pytest.mark.parametrize("make", [lambda c: c.duplicate(), lambda c: c.split(0)])
def test_what_is_made_of_it_keeps_the_order(make: Callable[[Communicator], Communicator]) -> None:
    def body(seat: Seat) -> None:
        comm = seat.communicator()
        comm.reproducible = True
        made = make(comm)
        array = seat.streams.put(np.ones(100_000, np.float32))
        made.allreduce(array, array).wait()
        assert seat.streams.get(array).tolist() == [3.0] * 100_000
        assert of_nccl(seat) == []
        made.close()
        comm.close()

    run_seats(3, body)


def test_the_ranks_connect_for_messages_when_the_order_is_set_and_once() -> None:
    def body(seat: Seat) -> None:
        comm = seat.communicator()
        seat.peers.control.barrier("all are there")
        assert not any(line.startswith(("connect", "send(")) for line in seat.log.lines)
        comm.reproducible = True
        comm.reproducible = True
        others = [(seat.rank + 1) % 3, (seat.rank + 2) % 3]
        assert seat.log.lines.count(f"connect communicator 0 with {others}") == 1
        lines = [line for line in seat.log.lines if line.startswith(("send(", "receive("))]
        assert len(lines) == 4
        assert all("count=1, dtype=uint8" in line for line in lines)
        comm.close()

    run_seats(3, body)


def test_a_rank_that_does_not_connect_breaks_the_communicator_in_time() -> None:
    def late(*_: object) -> None:
        raise CommTimeout("NCCL 2.32.3: ncclGroupEnd waited 300 s for the other ranks")

    def body(seat: Seat) -> None:
        comm = seat.communicator()
        seat.binding.connect = late  # type: ignore[method-assign]
        words = rf"rank {seat.rank} of 2: connecting the ranks for messages: NCCL 2\.32\.3"
        with pytest.raises(CommTimeout, match=words):
            comm.reproducible = True
        assert not comm.reproducible
        with pytest.raises(CommTimeout, match=words):
            comm.barrier()
        assert any(line.startswith("abort") for line in seat.log.lines)
        seat.peers.control.barrier("the test is over")
        comm.abort("the test is over")

    run_seats(2, body)


def test_a_rank_alone_has_no_order_to_keep() -> None:
    def body(seat: Seat) -> None:
        comm = seat.communicator()
        comm.reproducible = True
        array = seat.streams.put(np.ones(3, np.float32))
        comm.allreduce(array, array).wait()
        assert len(of_nccl(seat)) == 1
        comm.close()

    run_seats(1, body)


def test_a_message_alone_is_refused_by_the_stand_in() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1.0)
        stream, peer = seat.streams.communication, 1 - seat.rank
        place = array.data.ptr
        with breaks(seat, "in a group with what comes back"):
            seat.binding.send(handle, place, 1, F32, peer, stream)
        seat.binding.group_start()
        with breaks(seat, "a message goes to another rank"):
            seat.binding.receive(handle, place, 1, F32, seat.rank, stream)
        seat.binding.group_end()

    run_seats(2, body)


def test_what_is_sent_and_not_received_is_refused_by_the_stand_in() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1.0, 2.0)
        stream, place = seat.streams.communication, array.data.ptr
        follow(seat)
        words = "rank 0 of communicator 0 sends 8 bytes to rank 1, which receives 4"
        with breaks(seat, words):
            seat.binding.group_start()
            if seat.rank == 0:
                seat.binding.send(handle, place, 2, F32, 1, stream)
            else:
                seat.binding.receive(handle, place, 1, F32, 0, stream)
            seat.binding.group_end()
            result(seat, array)

    run_seats(2, body)


class InOrderStores(SeatStores):
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
            ordered_reduce, "SHORT_BYTES", 768
        )  # the stand-in needs a share for each rank

    def body(seat: Seat) -> None:
        with at(DevicePlace(seat)), InOrderStores(seat, update_on) as create:
            CAPTURES[name](create)
        assert of_nccl(seat) == []

    run_seats(3, body, lazy=True)


def test_memory_to_work_in_is_there_before_a_capture() -> None:
    def body(seat: Seat) -> None:
        comm, array = seat.communicator(), floats(seat, 1, 2)
        comm.reproducible = True
        comm.synchronize()
        with (
            pytest.raises(UsageError, match="need 16 bytes to work in.* same step once before it"),
            comm.capture(),
        ):
            comm.allreduce(array, array).wait()
        comm.allreduce(array, array).wait()
        comm.synchronize()
        with comm.capture() as graph:
            comm.allreduce(array, array).wait()
        graph.launch().wait()
        assert seat.streams.get(array).tolist() == [4, 8]
        comm.close()

    run_seats(2, body, lazy=True)
