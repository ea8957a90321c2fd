"""Layer 2, recording stand-in, not NCCL: it refuses calls that differ, overlap or miss memory.

Points 1, 3, 4 and 5 of the contract, each broken on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.calls import DTYPES, OPS
from tests.nccl.standin.direct_calls import F32, all_reduce, breaks, floats, follow, lead, result

pytestmark = pytest.mark.limit(20)
SIZES = (1, 2, 3, 4)


def ready(worker: Worker, *counts: int) -> tuple[Any, ...]:
    """Return a handle, and arrays of ones that the communication stream may use."""
    arrays = [floats(worker, *[1.0] * count) for count in counts]
    follow(worker)
    return (worker.create(), *arrays)


# Point 1: the same sequence on every rank

MISMATCHES = {
    "count": ({"count": 5}, "all_reduce(count=5, dtype=float32, op=sum)"),
    "nothing": ({"count": 0}, "all_reduce(count=0, dtype=float32, op=sum)"),
    "dtype": ({"dtype": 2}, "all_reduce(count=6, dtype=int32, op=sum)"),
    "op": ({"op": 2}, "all_reduce(count=6, dtype=float32, op=max)"),
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", MISMATCHES)
def test_every_rank_raises_if_a_call_differs(name: str, lazy: bool) -> None:
    changes, other = MISMATCHES[name]

    def body(worker: Worker) -> None:
        handle, array = ready(worker, 6)
        mine = changes if worker.rank == 2 else {}
        expected = "rank 0 call 0: all_reduce(count=6, dtype=float32, op=sum), rank 2 call 0: "
        with breaks(worker, "communicator 0 made different calls", expected + other):
            all_reduce(worker, handle, array, **mine)
            result(worker, array)

    run_on_standin(3, body, lazy=lazy)


def test_calls_in_another_order_differ() -> None:
    def body(worker: Worker) -> None:
        handle, one, two = ready(worker, 4, 8)
        order = [one, two] if worker.rank == 0 else [two, one]
        with breaks(worker, "call 0: all_reduce(count=4,", "call 0: all_reduce(count=8,"):
            worker.binding.group_start()
            for array in order:
                all_reduce(worker, handle, array)
            worker.binding.group_end()
            result(worker, one)

    run_on_standin(2, body)


def test_another_kind_and_another_root_differ() -> None:
    def body(worker: Worker) -> None:
        handle, array = ready(worker, 4)
        stream, place = worker.streams.communication, array.data.ptr
        with breaks(worker, "broadcast(count=4, dtype=float32, root=0)", "root=1)"):
            worker.binding.broadcast(handle, place, place, 4, F32, worker.rank, stream)
            result(worker, array)

    run_on_standin(2, body)


# Point 3: no order within a group


@pytest.mark.parametrize("size", [1, 2])
def test_calls_of_a_group_must_not_share_memory(size: int) -> None:
    def body(worker: Worker) -> None:
        handle, one, two, three = ready(worker, 4, 4, 4)
        words = "in one group, which has no order, "
        worker.binding.group_start()
        all_reduce(worker, handle, one, two)
        for send, receive, met in ((three, two, two), (two, three, two), (three, one, one)):
            with breaks(worker, words, f"[0:{met.nbytes}]", "put them in two groups"):
                all_reduce(worker, handle, send, receive)
        all_reduce(worker, handle, one, three)  # both only read, which is no conflict
        worker.binding.group_end()
        assert result(worker, two) == result(worker, three) == [size] * 4

    run_on_standin(size, body)


def test_a_group_has_one_stream() -> None:
    def body(worker: Worker) -> None:
        handle, one, two = ready(worker, 4, 4)
        other = worker.device.stream("a stream of the test")
        worker.binding.group_start()
        all_reduce(worker, handle, one)
        with breaks(worker, "is on another stream than all_reduce("):
            all_reduce(worker, handle, two, stream=other)
        worker.binding.group_end()

    run_on_standin(2, body)


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
def test_counts_are_checked_against_the_memory(name: str) -> None:
    changes, words = WRONG[name]

    def body(worker: Worker) -> None:
        handle, array = ready(worker, 6)
        with breaks(worker, words):
            all_reduce(worker, handle, array, **changes)

    run_on_standin(2, body)


def test_addresses_lie_in_live_allocations() -> None:
    def body(worker: Worker) -> None:
        handle, array, gone = ready(worker, 6, 6)
        place, stream = array.data.ptr, worker.streams.communication
        call = (6, F32, 0, stream)
        with breaks(worker, "24 bytes from memory 1+4, past its end at 24"):
            worker.binding.all_reduce(handle, place + 4, place + 4, *call)
        for wrong in (place - 4, place + 128, 4096):
            with breaks(worker, "touches 24 bytes at 0x", "where nothing is allocated"):
                worker.binding.all_reduce(handle, place, wrong, *call)
        with breaks(worker, "is not a multiple of an element"):
            worker.binding.all_reduce(handle, place + 2, place + 2, 5, F32, 0, stream)
        place = gone.data.ptr
        del gone
        with breaks(worker, "where nothing is allocated"):
            worker.binding.all_reduce(handle, place, place, *call)
        with breaks(worker, "the root is none of 2 ranks"):
            worker.binding.broadcast(handle, place, place, 6, F32, 2, stream)

    run_on_standin(2, body)


def test_a_write_beside_an_array_is_found() -> None:
    def body(worker: Worker) -> None:
        array = floats(worker, 1.0)
        allocation = worker.device.memory.find(array.data.ptr, 4, "the test")[0]
        allocation.space[allocation.first + 4] += 1
        with breaks(worker, "something wrote beside memory 1 (4 bytes)"):
            worker.check()
        allocation.space[allocation.first + 4] -= 1

    run_on_standin(1, body)


# Point 5: in place

Form = Callable[[Worker, int, int, int], None]


def form(worker: Worker, kind: str, send: int, receive: int, count: int) -> None:
    """Make a call of one kind with these addresses."""
    handle, stream = worker.handle, worker.streams.communication  # type: ignore[attr-defined]
    call = getattr(worker.binding, kind)
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
def test_in_place_calls_have_equal_results(size: int, lazy: bool) -> None:
    def body(worker: Worker) -> None:
        worker.handle = worker.create()  # type: ignore[attr-defined]
        own = 4 * worker.rank * 2  # offset of this rank's part of two elements
        for kind, send, receive, wanted in (
            ("all_reduce", 0, 0, slice(0, 2)),
            ("reduce", 0, 0, slice(0, 2 if worker.rank == 0 else 0)),
            ("broadcast", 0, 0, slice(0, 2)),
            ("reduce_scatter", 0, own, slice(own // 4, own // 4 + 2)),
            ("all_gather", own, 0, slice(0, 2 * size)),
        ):
            values = [10.0 * worker.rank + i for i in range(2 * size)]
            array, apart = floats(worker, *values), floats(worker, *[0.0] * (2 * size))
            follow(worker)
            place = array.data.ptr
            # Separate buffers first, since a call in place changes the sent values.
            form(worker, kind, place + send, apart.data.ptr + receive, 2)
            form(worker, kind, place + send, place + receive, 2)
            assert result(worker, array)[wanted] == result(worker, apart)[wanted], kind

    run_on_standin(size, body, lazy=lazy)


@pytest.mark.parametrize("kind", ["all_reduce", "reduce", "broadcast", "reduce_scatter"])
def test_other_overlaps_are_refused(kind: str) -> None:
    def body(worker: Worker) -> None:
        worker.handle, array = ready(worker, 8)  # type: ignore[attr-defined]
        place = array.data.ptr
        if kind in ("reduce", "broadcast") and worker.rank:
            return  # only rank 0 has both buffers
        shift = 8 * worker.rank if kind == "reduce_scatter" else 0
        words = (
            f"on rank {worker.rank} it may begin {shift} bytes after it",
            "receive begins 4 by",
        )
        with breaks(worker, *words):
            form(worker, kind, place, place + 4, 2)

    run_on_standin(2, body)


def test_a_gather_has_a_slot_for_each_rank() -> None:
    def body(worker: Worker) -> None:
        worker.handle, array = ready(worker, 4)  # type: ignore[attr-defined]
        place = array.data.ptr
        with breaks(
            worker, f"on rank {worker.rank} it may begin {-8 * worker.rank} bytes after it"
        ):
            form(worker, "all_gather", place + 8 * (1 - worker.rank), place, 2)

    run_on_standin(2, body)


# Results, on which the other tests rely


@pytest.mark.parametrize("size", SIZES)
def test_every_dtype_and_op(size: int) -> None:
    def body(worker: Worker) -> None:
        handle = worker.create()
        for code, dtype in enumerate(DTYPES[:10]):
            for number, op in enumerate(OPS):
                array = worker.streams.put(np.array([worker.rank + 1, 3]).astype(dtype))
                follow(worker)
                all_reduce(worker, handle, array, dtype=code, op=number)
                ranks = np.arange(1, size + 1)
                folds = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}
                first, second = (folds.get(op, np.sum)(v) for v in (ranks, [3] * size))
                if op == "avg":
                    exact = dtype.kind not in "iu"
                    first, second = first / size if exact else first // size, 3
                lead(worker)
                wanted = np.array([first, second]).astype(dtype)
                assert worker.streams.get(array).tobytes() == wanted.tobytes(), (dtype, op)

    run_on_standin(size, body)
