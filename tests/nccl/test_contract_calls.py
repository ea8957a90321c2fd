"""Layer 2, recording stand-in, not NCCL: it refuses calls that differ, overlap or miss memory.

Points 1, 3, 4 and 5 of the contract, each broken on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from tests.nccl.standin import Seat, run_seats
from tests.nccl.standin.calls import DTYPES, OPS
from tests.nccl.standin.drive import F32, all_reduce, breaks, floats, follow, lead, result

pytestmark = pytest.mark.limit(20)
SIZES = (1, 2, 3, 4)


def ready(seat: Seat, *counts: int) -> tuple[Any, ...]:
    """Return a handle, and arrays of ones that the communication stream may use."""
    arrays = [floats(seat, *[1.0] * count) for count in counts]
    follow(seat)
    return (seat.create(), *arrays)


# Point 1: the same sequence on every rank

MISMATCHES = {
    "count": ({"count": 5}, "all_reduce(count=5, dtype=float32, op=sum)"),
    "nothing": ({"count": 0}, "all_reduce(count=0, dtype=float32, op=sum)"),
    "dtype": ({"dtype": 2}, "all_reduce(count=6, dtype=int32, op=sum)"),
    "op": ({"op": 2}, "all_reduce(count=6, dtype=float32, op=max)"),
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", MISMATCHES)
def test_every_rank_hears_of_a_call_that_differs(name: str, lazy: bool) -> None:
    changes, other = MISMATCHES[name]

    def body(seat: Seat) -> None:
        handle, array = ready(seat, 6)
        mine = changes if seat.rank == 2 else {}
        expected = "rank 0 call 0: all_reduce(count=6, dtype=float32, op=sum), rank 2 call 0: "
        with breaks(seat, "communicator 0 made different calls", expected + other):
            all_reduce(seat, handle, array, **mine)
            result(seat, array)

    run_seats(3, body, lazy=lazy)


def test_calls_in_another_order_differ() -> None:
    def body(seat: Seat) -> None:
        handle, one, two = ready(seat, 4, 8)
        order = [one, two] if seat.rank == 0 else [two, one]
        with breaks(seat, "call 0: all_reduce(count=4,", "call 0: all_reduce(count=8,"):
            seat.binding.group_start()
            for array in order:
                all_reduce(seat, handle, array)
            seat.binding.group_end()
            result(seat, one)

    run_seats(2, body)


def test_another_kind_and_another_root_differ() -> None:
    def body(seat: Seat) -> None:
        handle, array = ready(seat, 4)
        stream, place = seat.streams.communication, array.data.ptr
        with breaks(seat, "broadcast(count=4, dtype=float32, root=0)", "root=1)"):
            seat.binding.broadcast(handle, place, place, 4, F32, seat.rank, stream)
            result(seat, array)

    run_seats(2, body)


# Point 3: no order within a group


@pytest.mark.parametrize("size", [1, 2])
def test_calls_of_a_group_do_not_meet(size: int) -> None:
    def body(seat: Seat) -> None:
        handle, one, two, three = ready(seat, 4, 4, 4)
        words = "in one group, which has no order, "
        seat.binding.group_start()
        all_reduce(seat, handle, one, two)
        for send, receive, met in ((three, two, two), (two, three, two), (three, one, one)):
            with breaks(seat, words, f"[0:{met.nbytes}]", "put them in two groups"):
                all_reduce(seat, handle, send, receive)
        all_reduce(seat, handle, one, three)  # both only read, which is no conflict
        seat.binding.group_end()
        assert result(seat, two) == result(seat, three) == [size] * 4

    run_seats(size, body)


def test_a_group_has_one_stream() -> None:
    def body(seat: Seat) -> None:
        handle, one, two = ready(seat, 4, 4)
        other = seat.device.stream("a stream of the test")
        seat.binding.group_start()
        all_reduce(seat, handle, one)
        with breaks(seat, "is on another stream than all_reduce("):
            all_reduce(seat, handle, two, stream=other)
        seat.binding.group_end()

    run_seats(2, body)


# Point 4: memory and codes

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "past its end": ({"count": 7}, "28 bytes from memory 1+0, past its end at 24"),
    "wider elements": ({"dtype": 8}, "48 bytes from memory 1+0, past its end at 24"),
    "dtype 12": ({"dtype": 12}, "dtype 12 is none of NCCL's, 0 to 11"),
    "dtype -1": ({"dtype": -1}, "dtype -1 is none of NCCL's"),
    "op 5": ({"op": 5}, "op 5 is none of NCCL's, 0 to 4"),
    "a negative count": ({"count": -1}, "the count is negative"),
}


@pytest.mark.parametrize("name", WRONG)
def test_numbers_are_held_against_the_memory(name: str) -> None:
    changes, words = WRONG[name]

    def body(seat: Seat) -> None:
        handle, array = ready(seat, 6)
        with breaks(seat, words):
            all_reduce(seat, handle, array, **changes)

    run_seats(2, body)


def test_addresses_lie_in_live_allocations() -> None:
    def body(seat: Seat) -> None:
        handle, array, gone = ready(seat, 6, 6)
        place, stream = array.data.ptr, seat.streams.communication
        call = (6, F32, 0, stream)
        with breaks(seat, "24 bytes from memory 1+4, past its end at 24"):
            seat.binding.all_reduce(handle, place + 4, place + 4, *call)
        for wrong in (place - 4, place + 128, 4096):
            with breaks(seat, "touches 24 bytes at 0x", "where nothing is allocated"):
                seat.binding.all_reduce(handle, place, wrong, *call)
        with breaks(seat, "is not a multiple of an element"):
            seat.binding.all_reduce(handle, place + 2, place + 2, 5, F32, 0, stream)
        place = gone.data.ptr
        del gone
        with breaks(seat, "where nothing is allocated"):
            seat.binding.all_reduce(handle, place, place, *call)
        with breaks(seat, "the root is none of 2 ranks"):
            seat.binding.broadcast(handle, place, place, 6, F32, 2, stream)

    run_seats(2, body)


def test_a_write_beside_an_array_is_found() -> None:
    def body(seat: Seat) -> None:
        array = floats(seat, 1.0)
        allocation = seat.device.memory.find(array.data.ptr, 4, "the test")[0]
        allocation.space[allocation.first + 4] += 1
        with breaks(seat, "something wrote beside memory 1 (4 bytes)"):
            seat.check()
        allocation.space[allocation.first + 4] -= 1

    run_seats(1, body)


# Point 5: in place

Form = Callable[[Seat, int, int, int], None]


def form(seat: Seat, kind: str, send: int, receive: int, count: int) -> None:
    """Make a call of one kind with these addresses."""
    handle, stream = seat.handle, seat.streams.communication  # type: ignore[attr-defined]
    call = getattr(seat.binding, kind)
    numbers: dict[str, tuple[int, ...]] = {
        "all_reduce": (0,),
        "reduce": (0, 0),
        "broadcast": (0,),
        "reduce_scatter": (0,),
        "all_gather": (),
    }
    call(handle, send, receive, count, F32, *numbers[kind], stream)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_in_place_forms_give_what_others_do(size: int, lazy: bool) -> None:
    def body(seat: Seat) -> None:
        seat.handle = seat.create()  # type: ignore[attr-defined]
        own = 4 * seat.rank * 2  # offset of this rank's part of two elements
        for kind, send, receive, wanted in (
            ("all_reduce", 0, 0, slice(0, 2)),
            ("reduce", 0, 0, slice(0, 2 if seat.rank == 0 else 0)),
            ("broadcast", 0, 0, slice(0, 2)),
            ("reduce_scatter", 0, own, slice(own // 4, own // 4 + 2)),
            ("all_gather", own, 0, slice(0, 2 * size)),
        ):
            values = [10.0 * seat.rank + i for i in range(2 * size)]
            array, apart = floats(seat, *values), floats(seat, *[0.0] * (2 * size))
            follow(seat)
            place = array.data.ptr
            # Separate buffers first, since a call in place changes the sent values.
            form(seat, kind, place + send, apart.data.ptr + receive, 2)
            form(seat, kind, place + send, place + receive, 2)
            assert result(seat, array)[wanted] == result(seat, apart)[wanted], kind

    run_seats(size, body, lazy=lazy)


@pytest.mark.parametrize("kind", ["all_reduce", "reduce", "broadcast", "reduce_scatter"])
def test_other_overlaps_are_refused(kind: str) -> None:
    def body(seat: Seat) -> None:
        seat.handle, array = ready(seat, 8)  # type: ignore[attr-defined]
        place = array.data.ptr
        if kind in ("reduce", "broadcast") and seat.rank:
            return  # only rank 0 has both buffers
        shift = 8 * seat.rank if kind == "reduce_scatter" else 0
        words = (f"on rank {seat.rank} it may begin {shift} bytes after it", "receive begins 4 by")
        with breaks(seat, *words):
            form(seat, kind, place, place + 4, 2)

    run_seats(2, body)


def test_a_gather_has_its_own_place_for_each_rank() -> None:
    def body(seat: Seat) -> None:
        seat.handle, array = ready(seat, 4)  # type: ignore[attr-defined]
        place = array.data.ptr
        with breaks(seat, f"on rank {seat.rank} it may begin {-8 * seat.rank} bytes after it"):
            form(seat, "all_gather", place + 8 * (1 - seat.rank), place, 2)

    run_seats(2, body)


# Results, on which the other tests rely


@pytest.mark.parametrize("size", SIZES)
def test_every_dtype_and_op(size: int) -> None:
    def body(seat: Seat) -> None:
        handle = seat.create()
        for code, dtype in enumerate(DTYPES[:10]):
            for number, op in enumerate(OPS):
                array = seat.streams.put(np.array([seat.rank + 1, 3]).astype(dtype))
                follow(seat)
                all_reduce(seat, handle, array, dtype=code, op=number)
                ranks = np.arange(1, size + 1)
                folds = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}
                first, second = (folds.get(op, np.sum)(v) for v in (ranks, [3] * size))
                if op == "avg":
                    exact = dtype.kind not in "iu"
                    first, second = first / size if exact else first // size, 3
                lead(seat)
                wanted = np.array([first, second]).astype(dtype)
                assert seat.streams.get(array).tobytes() == wanted.tobytes(), (dtype, op)

    run_seats(size, body)
