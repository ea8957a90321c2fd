"""Layer 2, recording stand-in, not NCCL: no work runs before a wait, and the results show it.

Point 2 of the contract.
"""

from __future__ import annotations

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from tests.nccl.standin import Seat, run_seats
from tests.nccl.standin.drive import all_reduce, floats, follow, lead, poisoned, result

pytestmark = pytest.mark.limit(20)
MODES = pytest.mark.parametrize("lazy", [False, True], ids=["prompt", "lazy"])


@MODES
def test_nothing_happens_before_the_outermost_group_ends(lazy: bool) -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1, 2)
        follow(seat)
        seat.binding.group_start()
        seat.binding.group_start()
        all_reduce(seat, handle, array)
        seat.binding.group_end()
        seat.peers.control.barrier()
        assert seat.streams.peek(array).tolist() == [1, 2]
        seat.binding.group_end()
        assert not lazy or poisoned(seat, array)
        assert result(seat, array) == [2, 4]

    run_seats(2, body, lazy=lazy)


def test_a_lazy_device_holds_outputs_back_until_the_host_waits() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1, 2)
        follow(seat)
        all_reduce(seat, handle, array)
        event = seat.streams.record(seat.streams.communication)
        lead(seat)
        for _ in range(3):  # more calls, at which a prompt device would advance
            floats(seat, 0)
            assert poisoned(seat, array)
        assert not event.done()
        assert poisoned(seat, array)
        seat.peers.control.barrier()  # all ranks have launched; a wait advances every device
        while not event.done():
            pass
        assert seat.streams.peek(array).tolist() == result(seat, array) == [2, 4]

    run_seats(2, body, lazy=True)


def test_a_prompt_device_goes_on_at_every_call() -> None:
    def body(seat: Seat) -> None:
        handle, array = seat.create(), floats(seat, 1, 2)
        follow(seat)
        all_reduce(seat, handle, array)
        while poisoned(seat, array):
            floats(seat, 0)
        assert seat.streams.peek(array).tolist() == result(seat, array) == [2, 4]

    run_seats(2, body)


@MODES
def test_a_rank_alone_does_not_wait_for_the_group(lazy: bool) -> None:
    def body(seat: Seat) -> None:
        handle, array, out = seat.create(), floats(seat, 1, 2), floats(seat, 0, 0)
        follow(seat)
        seat.binding.group_start()
        all_reduce(seat, handle, array, out)
        assert seat.streams.peek(out).tolist() == [1, 2]
        seat.binding.group_end()
        assert result(seat, out) == result(seat, array)

    run_seats(1, body, lazy=lazy)


@MODES
def test_what_follows_on_the_stream_sees_the_sum(lazy: bool) -> None:
    def body(seat: Seat) -> None:
        handle, array, copy = seat.create(), floats(seat, 1, 2), floats(seat, 0, 0)
        follow(seat)
        all_reduce(seat, handle, array)
        with seat.streams.on(seat.streams.communication):
            seat.kernels.pack(array, copy)
            assert not lazy or seat.streams.peek(copy).tolist() == [0, 0]
            assert seat.streams.get(copy).tolist() == [3, 6]

    run_seats(3, body, lazy=lazy)


@MODES
def test_a_device_moves_while_the_host_waits_for_something_else(lazy: bool) -> None:
    """Check that a rank in a barrier advances the collectives that its peers wait for."""

    def body(seat: Seat) -> None:
        handle, array, other = seat.create(), floats(seat, 1), floats(seat, 5)
        follow(seat)
        all_reduce(seat, handle, array)
        all_reduce(seat, handle, other)  # begins after the end of the first, on every rank
        if seat.rank:
            assert result(seat, other) == [10]
        seat.peers.control.barrier()
        assert result(seat, array) == [2]

    run_seats(2, body, lazy=lazy)
