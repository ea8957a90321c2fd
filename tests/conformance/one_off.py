"""Collectives of arrays that have no key: `allreduce` and `allgather`."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ncclkv.optimizer as optimizer
from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import full, intact, probed, pulled, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores

Array = NDArray[Any]

OPS = ("sum", "avg", "max", "min", "prod")
DTYPES = ("bool", "int8", "int32", "uint64", "float16", "float32", "float64", "complex64")
_STEP = {"max": np.maximum, "min": np.minimum, "prod": np.multiply}


def mine(rank: int, shape: tuple[int, ...] = (2, 3), dtype: Any = np.float32) -> Array:
    """Return a rank's small whole numbers, in which every place is another number."""
    size = int(np.prod(shape))
    base = (np.arange(size) * 5 + 3 * rank) % 4 + 1
    return (base % 2 if np.dtype(dtype).kind == "b" else base).astype(dtype).reshape(shape)


def reduced(kv: Any, op: str, shape: tuple[int, ...] = (2, 3), dtype: Any = np.float32) -> Array:
    """Return the reduction of all ranks' numbers."""
    parts = [mine(rank, shape, dtype) for rank in range(kv.num_workers)]
    whole = reduce(_STEP.get(op, np.add), parts)
    if op == "avg" and whole.dtype.kind in "iu":
        whole = whole // kv.num_workers
    elif op == "avg":
        wide = np.float32 if whole.dtype == np.float16 else whole.dtype
        whole = whole.astype(wide) / np.dtype(wide).type(kv.num_workers)
    return np.asarray(whole).astype(dtype)


def is_defined(op: str, dtype: str) -> bool:
    """Return whether stores reduce a dtype by an op."""
    kind = np.dtype(dtype).kind
    undefined = (kind == "b" and op == "avg") or (kind == "c" and op in ("max", "min", "prod"))
    return not undefined and not current_buffers().capabilities.refused(np.dtype(dtype), op)


def equal(got: Any, expected: Any) -> None:
    """Fail unless an array has the shape, dtype and elements of another."""
    got = np.asarray(current_buffers().get(got))
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    if got.dtype.kind in "fc":  # averages of NCCL are products with a rounded 1 / n
        np.testing.assert_allclose(got, expected, rtol=1e-3 if got.dtype == np.float16 else 1e-6)
    else:
        np.testing.assert_array_equal(got, expected)


@case()
def every_op_and_dtype(create: Stores) -> None:
    kv = probed(create)
    for op in OPS:
        for dtype in DTYPES:
            if is_defined(op, dtype):
                equal(kv.allreduce(mine(kv.rank, dtype=dtype), op), reduced(kv, op, dtype=dtype))
    intact(kv)


@case(needs="ml_dtypes")
def bfloat16(create: Stores) -> None:
    from ml_dtypes import bfloat16

    kv = create()
    # bfloat16 has 8 bits: 256 + 1 is 256 there.
    got = kv.allreduce(full(256 if kv.rank == 0 else 1, dtype=bfloat16))
    assert got.dtype == bfloat16
    if current_buffers().capabilities.rank_order:
        same(got.astype(np.float32), np.float32(bfloat16(255.0 + kv.num_workers)))
    for rank, part in enumerate(kv.allgather(full(kv.rank, dtype=bfloat16))):
        same(part.astype(np.float32), rank)


@case()
def every_shape_and_layout(create: Stores) -> None:
    kv = create()
    for shape in ((), (0,), (3, 0), (1,), (7,), (2, 3), (4, 1, 2), (70_001,)):
        equal(kv.allreduce(mine(kv.rank, shape)), reduced(kv, "sum", shape))
        every = np.stack([mine(rank, shape) for rank in range(kv.num_workers)])
        equal(kv.allgather(mine(kv.rank, shape)), every)
    plain = np.arange(24, dtype=np.float32).reshape(4, 6) * np.float32(kv.rank + 1)
    frozen = plain.copy()
    frozen.flags.writeable = False
    forms = {
        "rows": plain[::2],
        "columns": plain[:, ::3],
        "backwards": plain[::-1, ::-1],
        "transposed": plain.T,
        "fortran": np.asfortranarray(plain),
        "repeated": np.broadcast_to(plain[0], (3, 6)),
        "swapped": plain.astype(plain.dtype.newbyteorder()),
        "read-only": frozen,
    }
    for value in forms.values():
        one = (np.asarray(value) / (kv.rank + 1)).astype(np.float32)
        equal(kv.allreduce(value), one * np.float32(total(kv)))
        every = np.stack([one * np.float32(rank + 1) for rank in range(kv.num_workers)])
        equal(kv.allgather(value), every)


@case()
def results_are_new_arrays(create: Stores) -> None:
    kv = create()
    value = mine(kv.rank)
    first = kv.allreduce(value)
    everyone = kv.allgather(value)
    same(value, mine(kv.rank))
    kept = np.array(current_buffers().get(first)), np.array(current_buffers().get(everyone))
    value += 100
    second = kv.allreduce(value)
    kv.allgather(value)
    equal(second, reduced(kv, "sum") + np.float32(100 * kv.num_workers))
    same(first, kept[0])
    same(everyone, kept[1])


@case()
def a_number_gives_a_number(create: Stores) -> None:
    kv = create()
    n = kv.num_workers
    cases: list[tuple[Any, str, Any]] = [
        (kv.rank + 1, "sum", total(kv)),
        (float(kv.rank), "avg", (n - 1) / 2),
        (kv.rank + 0.5, "max", n - 0.5),
        (2.0, "prod", 2.0**n),
        (kv.rank + 1, "min", 1),
        (float(n * kv.rank), "avg", float(total(kv) - n)),
        (kv.rank == 0, "sum", True),
        (kv.rank == 0, "prod", n == 1),
        (2**62, "max", 2**62),
        (1 + kv.rank * 1j, "sum", n + (total(kv) - n) * 1j),
    ]
    for number, op, expected in cases:
        got = kv.allreduce(number, op)
        assert type(got) is type(number)
        assert got == expected, (number, op)
    average = kv.allreduce(4 if kv.rank == 0 else 3, "avg")
    assert type(average) is float
    assert abs(average - (3 + 1 / n)) < 1e-12
    ranks = kv.allgather(10 * kv.rank)
    assert (ranks.shape, ranks.dtype) == ((n,), np.int64)
    same(ranks, [10 * rank for rank in range(n)])


@case()
def a_scalar_of_numpy_gives_a_scalar(create: Stores) -> None:
    kv = create()
    array = mine(kv.rank)
    for scalar in (array.sum(dtype=np.float64), array.max(), np.int64(kv.rank), np.bool_(True)):
        for op in ("sum", "max"):
            got = kv.allreduce(scalar, op)
            assert type(got) is type(scalar)
            same(np.asarray(got), kv.allreduce(np.asarray(scalar), op))
    assert f"{kv.allreduce(np.float32(1)):.1f}" == f"{kv.num_workers:.1f}"
    pair = kv.allreduce([np.float64(1), 1])
    assert [*map(type, pair)] == [np.float64, int]


@case()
def a_list_is_several_arrays(create: Stores) -> None:
    kv = create()
    shapes: list[Any] = [(2, 3), (), (5,), (0,), (2, 3), (300,)]
    dtypes = ["float32", "int64", "float32", "float64", "int64", "float32"]
    values: list[Any] = [mine(kv.rank, shape, dtype) for shape, dtype in zip(shapes, dtypes)]  # noqa: B905
    for op in ("sum", "max", "prod"):
        got = kv.allreduce([*values, kv.rank + 1, 0.5], op)
        assert type(got) is list
        assert len(got) == 8
        for array, shape, dtype in zip(got, shapes, dtypes):  # noqa: B905
            equal(array, reduced(kv, op, shape, dtype))
        assert [type(number) for number in got[6:]] == [int, float]
    assert kv.allreduce((kv.rank, True), "max") == [kv.num_workers - 1, True]
    gathered = kv.allgather(values)
    for array, shape, dtype in zip(gathered, shapes, dtypes):  # noqa: B905
        equal(array, np.stack([mine(rank, shape, dtype) for rank in range(kv.num_workers)]))
    equal(kv.allreduce([values[0]])[0], reduced(kv, "sum"))


@case()
def outs_are_written_in_place(create: Stores) -> None:
    kv = create()
    n, want = kv.num_workers, reduced(kv, "sum")
    outs: dict[str, Array] = {
        "plain": full(-1),
        "wider": full(-1, dtype=np.float64),
        "integers": full(-1, dtype=np.int64),
        "strided": full(-1, (4, 6))[::2, ::2],
        "fortran": np.asfortranarray(full(-1)),
        "backwards": full(-1)[::-1, ::-1],
    }
    for name, out in outs.items():
        assert kv.allreduce(mine(kv.rank), out=out) is None, name
        same(out, want)
    value = mine(kv.rank)
    kv.allreduce(value, out=value)
    same(value, want)
    value = mine(kv.rank)
    kv.allreduce(value, out=value[::-1])
    same(value[::-1], want)
    room = np.zeros(12, np.float32)
    first, second = room[:6].reshape(2, 3), room[6:].reshape(2, 3)
    kv.allreduce([mine(kv.rank), full(1)], "sum", out=[first, second])
    same(first, want)
    same(second, n)
    scalar = np.zeros(())
    kv.allreduce(1.5, out=scalar)
    same(scalar, 1.5 * n)
    every = np.stack([mine(rank) for rank in range(n)])
    for out in (full(-1, (n, 2, 3)), full(-1, (2 * n, 2, 3), np.float64)[::2]):
        assert kv.allgather(mine(kv.rank), out=out) is None
        same(out, every)
    ranks = [np.zeros(n, np.int32), full(0, (n, 2, 3))]
    kv.allgather([kv.rank, mine(kv.rank)], out=ranks)
    same(ranks[0], range(n))
    same(ranks[1], every)


@case(needs="torch")
def torch_tensors(create: Stores) -> None:
    import torch

    kv = create()
    value = torch.from_numpy(mine(kv.rank)).requires_grad_()
    equal(kv.allreduce(value), reduced(kv, "sum"))
    equal(kv.allreduce([value.t(), torch.tensor(2)], "max")[0], reduced(kv, "max").T)
    out = torch.zeros(3, 2)
    version = out._version
    kv.allreduce(value, "min", out=out.t())
    same(out.numpy().T, reduced(kv, "min"))
    assert out._version > version
    parts = torch.zeros(kv.num_workers, 2, 3)
    kv.allgather(value, out=parts)
    same(parts.numpy(), np.stack([mine(rank) for rank in range(kv.num_workers)]))
    half = torch.full((3,), 2.0, dtype=torch.bfloat16)
    kv.allreduce(half, out=half)
    same(half.float().numpy(), 2 * kv.num_workers)


@case()
def arrays_that_offer_dlpack(create: Stores) -> None:
    from tests.conformance.foreign_arrays import Exporter

    kv = create()
    equal(kv.allreduce(Exporter(mine(kv.rank))), reduced(kv, "sum"))
    every = np.stack([mine(rank) for rank in range(kv.num_workers)])
    equal(kv.allgather([Exporter(mine(kv.rank))])[0], every)


@case()
def results_of_a_gpu_store_are_its_arrays(create: Stores) -> None:
    kv = probed(create)
    kind = type(kv.pull(3))
    assert type(kv.allreduce(mine(kv.rank))) is kind
    assert type(kv.allgather(1)) is kind
    given = current_buffers().put(mine(kv.rank))
    equal(kv.allreduce(given), reduced(kv, "sum"))
    kv.allreduce(given, out=given)
    equal(given, reduced(kv, "sum"))


@case()
def stores_do_not_change(create: Stores) -> None:
    for options in {}, {"missing": "zeros"}, {"verify_every": 1}, {"reproducible": True}:
        kv = probed(create, **options)
        kv.set_optimizer(optimizer.SGD(learning_rate=1.0))
        kv.push(3, full(kv.rank + 1))
        assert kv.allreduce(kv.rank + 1) == total(kv)
        kv.push(5, full(1))
        equal(kv.allgather(full(kv.rank, (2,))), np.stack([full(r, (2,)) for r in ranks(kv)]))
        same(pulled(kv, 3), 2 - total(kv))
        same(pulled(kv, 5), 4 - kv.num_workers)
        equal(kv.allreduce(kv.value(5)), full((4 - kv.num_workers) * kv.num_workers))


def ranks(kv: Any) -> range:
    return range(kv.num_workers)


@case()
def many_kinds_of_calls_by_turns(create: Stores) -> None:
    kv = create()
    calls: list[Callable[[], Any]] = [
        lambda: equal(kv.allreduce(mine(kv.rank)), reduced(kv, "sum")),
        lambda: equal(kv.allreduce(mine(kv.rank), "max"), reduced(kv, "max")),
        lambda: equal(kv.allreduce(mine(kv.rank, (3, 2))), reduced(kv, "sum", (3, 2))),
        lambda: equal(kv.allreduce(mine(kv.rank, (400_000,))), reduced(kv, "sum", (400_000,))),
        lambda: equal(kv.allgather(mine(kv.rank)), np.stack([mine(rank) for rank in ranks(kv)])),
    ]
    for step in range(12):
        calls[step * step % len(calls)]()
