"""Layer 2, recording stand-in, not NCCL: arrays and ops that the communicator accepts.

The stand-in computes; the tests check that the right call is made.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

import ml_dtypes
import numpy as np

from ncclkv.arrays.dtypes import SUPPORTED
from ncclkv.comm.buffers import check_op
from ncclkv.comm.destinations import Root
from ncclkv.comm.nccl import dtypes
from ncclkv.comm.nccl.binding import DTYPES, OPS
from ncclkv.comm.nccl.communicator import NcclCommunicator
from ncclkv.errors import NotSupported, UsageError
from tests.nccl.standin import Worker, run_on_standin

pytestmark = pytest.mark.limit(30)


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def communicator(worker: Worker) -> NcclCommunicator:
    return NcclCommunicator(worker.peers, worker.binding, worker.streams, worker.kernels)


def collectives(worker: Worker) -> list[str]:
    """Return the recorded collectives."""
    kinds = ("all_reduce(", "reduce(", "broadcast(", "all_gather(", "reduce_scatter(")
    return [line for line in worker.log.lines if line.startswith(kinds)]


def test_every_dtype_moves_with_all_its_bytes():
    sizes = {DTYPES[name]: dtype_of(name).itemsize for name in DTYPES}
    for name in SUPPORTED:
        dtype = dtype_of(name)
        way = dtypes.movement(dtype)
        assert sizes[way.dtype] * way.factor == dtype.itemsize, name


def refusal(check: Callable[[], object]) -> str | None:
    """Return why something is not supported, or None."""
    try:
        check()
    except NotSupported as error:
        return str(error)
    return None


def test_every_dtype_is_reduced_or_refused_in_words():
    refused = {}
    for name, op in product(SUPPORTED, OPS):
        by_hosts = refusal(partial(check_op, op, dtype_of(name)))
        by_nccl = refusal(partial(dtypes.reduction, dtype_of(name), op))
        if by_hosts is None and by_nccl is not None:
            refused[name, op] = by_nccl
    assert refused.keys() == {
        *((name, op) for name in ("int16", "uint16") for op in OPS),
        ("complex64", "prod"),
        ("complex128", "prod"),
    }
    for (name, op), text in refused.items():
        assert text.startswith(f"{op} of {name}: NCCL ")


def test_the_refusal_of_16_bit_integers_names_the_wider_dtype():
    for name, wider in (("int16", "int32"), ("uint16", "uint32")):
        with pytest.raises(NotSupported, match=rf"use \.astype\('{wider}'\)"):
            dtypes.reduction(np.dtype(name), "sum")


def test_bools_and_complex_numbers_come_out_right():
    def body(worker: Worker) -> None:
        comm = communicator(worker)
        truth = {
            "sum": [False, True, True],
            "max": [False, True, True],
            "min": [False, False, True],
            "prod": [False, False, True],
        }
        for op, wanted in truth.items():
            array = worker.streams.put(np.array([False, worker.rank == 1, True]))
            comm.allreduce(array, array, op).wait()
            # Bytes, because a bool of 3 would count as true, too.
            assert worker.streams.get(array).view(np.uint8).tolist() == [int(x) for x in wanted], op
        for op, wanted in (("sum", [3 + 3j, 9 - 3j]), ("avg", [1 + 1j, 3 - 1j])):
            array = worker.streams.put(np.array([worker.rank + 1j, 3 - 1j], np.complex64))
            comm.allreduce(array, array, op).wait()
            assert worker.streams.get(array).tolist() == wanted, op
        comm.close()

    run_on_standin(3, body)


def test_a_root_alone_receives_and_applies():
    def body(worker: Worker) -> None:
        comm = communicator(worker)
        send, receive = (worker.streams.put(np.full(3, v, np.float32)) for v in (1, 0))
        seen: list[tuple[int, int, int]] = []

        def apply(lo: int, hi: int) -> None:
            seen.append((lo, hi, worker.streams.current()))

        comm.reduction(send, receive, to=Root(1)).launch(apply).wait()
        updates = worker.rank == 1
        assert seen == ([(0, 3, worker.streams.communication)] if updates else [])
        assert worker.streams.get(receive).tolist() == ([3.0] * 3 if updates else [0.0] * 3)
        comm.close()

    run_on_standin(3, body)


def test_parts_are_scattered_and_gathered_by_rank():
    def body(worker: Worker) -> None:
        comm = communicator(worker)
        whole = worker.streams.put(np.arange(6, dtype=np.complex64))
        part = worker.streams.put(np.zeros(2, np.complex64))
        comm.reduce_scatter(whole, part).wait()
        assert worker.streams.get(part).tolist() == [6 * worker.rank, 6 * worker.rank + 3]
        comm.allgather(part, whole).wait()
        assert worker.streams.get(whole).tolist() == [0, 3, 6, 9, 12, 15]
        places = "memory 1+0 -> memory 2+0 on the communication stream"
        assert collectives(worker)[0] == f"reduce_scatter(count=4, dtype=float32, op=sum) {places}"
        comm.close()

    run_on_standin(3, body)


@pytest.mark.parametrize("end", ["done", "synchronize", "another launch", "close"])
def test_buffers_are_kept_until_they_are_done_with_and_no_longer(end):
    def body(worker: Worker) -> None:
        comm = communicator(worker)
        array = worker.streams.put(np.ones(2, np.float32))
        kept = weakref.ref(array)
        work = comm.allreduce(array, array)
        work.wait()
        del array
        assert kept() is not None
        if end == "done":
            while not work.done():
                time.sleep(1e-4)
        elif end == "close":
            comm.close()
        else:
            comm.synchronize()
        if end == "another launch":
            other = worker.streams.put(np.ones(2, np.float32))
            comm.allreduce(other, other)
        assert kept() is None
        comm.close()

    run_on_standin(2, body, lazy=True)


def test_no_call_is_launched_for_no_elements():
    def body(worker: Worker) -> None:
        comm = communicator(worker)
        empty = comm.allocate(0).view(np.float32)
        for work in (
            comm.allreduce(empty, empty),
            comm.reduce(empty, empty, "max", 0),
            comm.broadcast(empty),
            comm.reduce_scatter(empty, empty),
            comm.allgather(empty, empty),
        ):
            assert work.done()
            work.wait()
        assert collectives(worker) == []
        comm.close()

    run_on_standin(2, body)


def test_what_was_launched_waits_for_the_current_stream_and_the_other_way_round():
    def body(worker: Worker) -> list[str]:
        comm = communicator(worker)
        array = worker.streams.put(np.ones(2, np.float32))
        before = len(worker.log.lines)
        comm.allreduce(array, array).wait()
        lines = list(worker.log.lines[before:])
        comm.close()
        return lines

    for lines in run_on_standin(2, body):
        events = [line.split("event ")[1].split()[0] for line in lines if "event" in line]
        first, second = events[0], events[2]
        assert lines == [
            f"record event {first} on the default stream",
            f"let the communication stream wait for event {first}",
            "all_reduce(count=2, dtype=float32, op=sum) memory 1+0 -> memory 1+0 "
            "on the communication stream",
            f"record event {second} on the communication stream",
            f"let the default stream wait for event {second}",
        ]


def refusals(comm: NcclCommunicator) -> list[tuple[str, Callable[[], object]]]:
    """Yield calls with arrays that no collective accepts, and words of their errors."""
    size, rank = comm.size, comm.rank
    many = comm.allocate(16 * size).view(np.int32)
    host = np.zeros(4, np.int32)
    low, high, two = many[:3], many[1:4], many[::2]
    wrong = many[4 * (size - 1 - rank) :][:4]
    places = f"where {16 * rank} bytes are allowed, or no overlap"
    return [
        ("was given a NumPy array; pass cupy.asarray", lambda: comm.allreduce(host, host)),
        ("was given a NumPy array", lambda: comm.broadcast(host)),
        ("was given a NumPy array", lambda: comm.allgather(many[:4], np.zeros(4 * size, "i4"))),
        ("4 bytes after the other, where 0 bytes are", lambda: comm.allreduce(low, high)),
        ("send and receive overlap", lambda: comm.reduce(high, low)),
        (places, lambda: comm.reduce_scatter(many, wrong)),
        (places, lambda: comm.allgather(wrong, many)),
        ("not one-dimensional and contiguous", lambda: comm.allreduce(two, two)),
        ("receive is float32 and send", lambda: comm.allreduce(many, many.view(np.float32))),
        ("receive has 3 elements where 4", lambda: comm.allreduce(many[:4], many[:3])),
        (f"root={size} is not a rank", lambda: comm.broadcast(many, size)),
    ]


def test_what_nccl_cannot_take_is_refused_before_anything_moves():
    def body(worker: Worker) -> None:
        comm = communicator(worker)
        for words, call in refusals(comm):
            with pytest.raises(UsageError, match=words):
                call()
        assert collectives(worker) == []
        array = worker.streams.put(np.ones(2, np.float32))
        comm.allreduce(array, array).wait()
        assert worker.streams.get(array).tolist() == [2.0, 2.0]
        comm.close()

    run_on_standin(2, body)
