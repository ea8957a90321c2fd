"""Layer 2, recording stand-in, not NCCL: threads, lifetimes, and scripted faults.

Points 8, 9 and 10 of the contract, each broken on purpose, and the faults that NCCL's caller
observes.
"""

from __future__ import annotations

import re
import threading
import time

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.errors import CommAborted, CommTimeout, RankLost
from tests.nccl.standin import HEADER, ContractBroken, Died, Faults, Seat, run_seats
from tests.nccl.standin.drive import all_reduce, breaks, floats, follow

pytestmark = pytest.mark.limit(20)
MODES = pytest.mark.parametrize("lazy", [False, True], ids=["prompt", "lazy"])


# Point 8: one thread, and no creation inside a group


def test_a_communicator_belongs_to_one_thread() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        follow(seat)
        said: list[str] = []

        def other() -> None:
            try:
                all_reduce(seat, handle, array)
            except ContractBroken as error:
                said.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        wanted = "by a thread other than the one that created it"
        assert len(said) == 1
        assert wanted in said[0]

    run_seats(2, body)


def test_nothing_is_created_inside_a_group() -> None:
    def body(seat: Seat) -> None:
        seat.binding.group_start()
        with breaks(seat, f"create of rank {seat.rank} inside a group"):
            seat.create()
        seat.binding.group_end()
        with breaks(seat, "group_end without a group_start"):
            seat.binding.group_end()

    run_seats(2, body)


# Point 9: lifetimes


@pytest.mark.parametrize("end", ["destroy", "abort"])
def test_nothing_is_used_after_its_end(end: str) -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        follow(seat)
        getattr(seat.binding, end)(handle)
        was = f"of communicator 0 on rank {seat.rank}, which was {end}ed"
        for call in (
            lambda: all_reduce(seat, handle, array),
            lambda: seat.binding.async_error(handle),
            lambda: seat.binding.destroy(handle),
            lambda: seat.binding.abort(handle),
        ):
            with breaks(seat, was):
                call()

    run_seats(2, body)


def test_every_rank_destroys() -> None:
    def body(seat: Seat) -> None:
        handle = seat.create()
        if seat.rank == 0:
            with breaks(seat, "destroy of communicator 0 without every rank", "for rank 1"):
                seat.binding.destroy(handle)
        seat.peers.control.barrier()

    run_seats(2, body, limit=0.3)


def test_an_abort_is_no_destroy() -> None:
    def body(seat: Seat) -> None:
        handle = seat.create()
        if seat.rank:
            seat.binding.abort(handle)
        else:
            with breaks(seat, "destroy of communicator 0 without every rank", "rank 1 left"):
                seat.binding.destroy(handle)

    run_seats(2, body)


def test_what_is_destroyed_is_idle() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        follow(seat)
        all_reduce(seat, handle, array)
        with breaks(seat, f"destroy of communicator 0 on rank {seat.rank}, which is not idle"):
            seat.binding.destroy(handle)

    run_seats(2, body, lazy=True)


def test_a_unique_id_is_good_once() -> None:
    def body(seat: Seat) -> None:
        identity = seat.peers.control.broadcast(seat.binding.unique_id())
        assert len(identity) == 128
        seat.binding.create(2, identity, seat.rank)
        seat.peers.duplicate()
        with breaks(seat, "with a unique id that was used before"):
            seat.binding.create(2, identity, seat.rank)

    run_seats(2, body)


def test_ranks_give_one_id_and_their_places() -> None:
    def body(seat: Seat) -> None:
        with breaks(seat, f"rank {seat.rank} and rank {1 - seat.rank} create with different ids"):
            seat.binding.create(2, seat.binding.unique_id(), seat.rank)
        seat.peers.duplicate()
        with breaks(seat, f"create as rank {seat.rank} of 3: there is no such group of ranks"):
            seat.binding.create(3, seat.binding.unique_id(), seat.rank)
        with breaks(seat, "a unique id has 128 bytes, and this one 5"):
            seat.binding.create(2, b"short", seat.rank)

    run_seats(2, body)


@MODES
def test_a_stream_is_freed_when_it_is_empty(lazy: bool) -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1)
        follow(seat)
        if seat.rank == 0:
            all_reduce(seat, handle, array)
            with breaks(seat, "was freed while it had to do: all_reduce 0 of communicator 0"):
                seat.streams.close()

    run_seats(2, body, lazy=lazy)


# Point 10: faults that the communicator reports


@MODES
def test_a_rank_that_never_arrives_is_a_timeout(
    lazy: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def body(seat: Seat) -> None:
        comm, array = seat.communicator(0.2), floats(seat, 1)
        comm.allreduce(array, array).wait()
        assert seat.streams.get(array).tolist() == [3]
        second = comm.allreduce(array, array)
        second.wait()
        begin = time.monotonic()
        with pytest.raises(CommTimeout) as caught:
            comm.synchronize()
        assert 0.2 <= time.monotonic() - begin < 2
        text = str(caught.value)
        assert f"rank {seat.rank} of 3: a reduction of 4 bytes to all ranks waited 0." in text
        assert HEADER in text
        assert "abort communicator" in seat.log.lines[-1]
        with pytest.raises(CommTimeout):
            second.done()
        seat.spoilt = True  # the sum is lost with its array
        seat.peers.control.barrier()
        comm.abort("over")

    run_seats(3, body, lazy=lazy, faults={1: Faults(absent_from=1)})
    lines = [line for line in capsys.readouterr().err.splitlines() if " has waited " in line]
    assert lines, "a wait is reported before its deadline"
    for line in lines:
        assert re.match(
            r"ncclkv: rank \d of 3 on \S+ \(pid \d+\) has waited 0\.\d s \(timeout 0\.2 s\): "
            r"a reduction of 4 bytes to all ranks waits for ranks? .*, or for the network",
            line,
        ), line


@MODES
def test_a_rank_that_dies_in_a_call_is_lost(lazy: bool) -> None:
    def body(seat: Seat) -> None:
        comm, array = seat.communicator(20), floats(seat, 1)
        comm.allreduce(array, array).wait()
        comm.synchronize()
        if seat.rank == 2:
            with pytest.raises(Died, match="rank 2 dies in call 1: broadcast"):
                comm.broadcast(array, 2)
            with pytest.raises(CommAborted, match="a broadcast .* was interrupted by Died"):
                comm.broadcast(array, 2)
            comm.abort("killed")
            return
        comm.broadcast(array, 2).wait()
        words = "rank 2 left while a broadcast of 4 bytes from rank 2 waited for it; it said: kill"
        with pytest.raises(RankLost, match=words):
            comm.synchronize()
        seat.spoilt = True

    run_seats(3, body, lazy=lazy, faults={2: Faults(dies_in=1)})


def test_an_asynchronous_error_is_reported() -> None:
    said = "unhandled system error"

    def body(seat: Seat) -> None:
        comm, array = seat.communicator(20), floats(seat, 1)
        if seat.rank == 0:
            comm.allreduce(array, array).wait()
            with pytest.raises(CommAborted) as caught:
                comm.synchronize()
            text = str(caught.value)
            assert f"rank 0 of 2: a reduction of 4 bytes to all ranks: {HEADER}" in text
            assert f"2.29.7) reports: {said}" in text
            seat.spoilt = True
        seat.peers.control.barrier()
        comm.abort("over")

    run_seats(2, body, faults={0: Faults(async_errors={3: said})})


def test_a_close_after_a_fault_hangs_on_no_rank() -> None:
    def body(seat: Seat) -> None:
        comm, array = seat.communicator(20), floats(seat, *np.arange(4))
        comm.allreduce(array, array).wait()
        comm.synchronize()
        begin = time.monotonic()
        if seat.rank == 0:
            comm.abort("enough")
        else:
            comm.close()
        assert time.monotonic() - begin < 2
        comm.close()
        seat.spoilt = True

    run_seats(3, body)


def test_a_close_says_that_what_was_in_flight_is_lost() -> None:
    def body(seat: Seat) -> None:
        comm, array = seat.communicator(20), floats(seat, *np.arange(4))
        seat.spoilt = True
        if seat.rank == 0:
            comm.abort("enough")
            return
        comm.allreduce(array, array).wait()
        with pytest.raises(RankLost, match="rank 0 left while a reduction of 16 bytes"):
            comm.close()
        comm.abort("lost rank 0")

    run_seats(3, body)
