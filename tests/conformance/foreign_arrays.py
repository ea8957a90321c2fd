"""Arrays of other libraries: torch on the CPU, and any array that offers DLPack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ncclkv.errors import DTypeMismatch, ShapeMismatch, UsageError
from tests.conformance.expect import full, intact, probed, pulled, refused, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores


class Exporter:
    """An array that offers DLPack and nothing else."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@case()
def dlpack_as_value_and_out(create: Stores) -> None:
    kv = create()
    kv.init("d", Exporter(full(2)))
    same(pulled(kv, "d"), 2)
    kv.push("d", [Exporter(full(kv.rank + 1)), full(1)])
    memory = full(0)
    if np.lib.NumpyVersion(np.__version__) < "2.1.0":
        with refused(kv, UsageError, "out is read-only", "NumPy 2.1"):
            kv.pull("d", out=Exporter(memory))
        same(pulled(kv, "d"), total(kv) + kv.num_workers)
        return
    kv.pull("d", out=Exporter(memory))
    same(memory, total(kv) + kv.num_workers)
    memory[:] = kv.rank + 1
    kv.pushpull("d", Exporter(memory))
    same(memory, total(kv))


@case(needs="torch")
def torch_tensors_as_value_and_out(create: Stores) -> None:
    import torch

    kv = create()
    kv.init("t", torch.full((2, 3), 2.0))
    kv.push("t", [torch.full((2, 3), float(kv.rank + 1)), torch.ones(2, 3)])
    out = torch.zeros(2, 3)
    kv.pull("t", out=out)
    same(out.numpy(), total(kv) + kv.num_workers)
    value = torch.full((2, 3), float(kv.rank + 1))
    kv.pushpull("t", value)
    same(value.numpy(), total(kv))
    assert kv.spec("t").shape == (2, 3)


@case(needs="torch")
def torch_tensors_that_require_grad(create: Stores) -> None:
    import torch

    kv = create()
    weight = torch.full((2, 3), float(kv.rank + 1), requires_grad=True)
    kv.init("t", weight)
    kv.push("t", weight)
    kv.pull("t", out=weight)
    assert weight.requires_grad
    assert weight.is_leaf
    same(weight.detach().numpy(), total(kv))


@case(needs="torch")
def torch_tensors_of_every_layout(create: Stores) -> None:
    import torch

    kv = create()
    plain = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    forms = {"turned": plain.t(), "steps": plain[::2, 1::2], "zero": torch.tensor(3.0)}
    for key, value in forms.items():
        kv.init(key, value)
        kv.push(key, value)
        same(kv.pull(key), value.numpy() * kv.num_workers)
    room = torch.zeros(12, 4)
    kv.pull("turned", out=room[::2])
    same(room[::2].numpy(), plain.t().numpy() * kv.num_workers)
    same(room[1::2].numpy(), 0)


@case(needs="torch")
def torch_dtypes(create: Stores) -> None:
    import torch

    kv = create()
    for dtype in (torch.float16, torch.float64, torch.int32, torch.int64, torch.uint8):
        key = str(dtype)
        kv.init(key, torch.zeros(2, 3, dtype=dtype))
        kv.push(key, torch.full((2, 3), kv.rank + 1, dtype=dtype))
        out = torch.zeros(2, 3, dtype=dtype)
        kv.pull(key, out=out)
        same(out.numpy(), total(kv))
    kv.init("bool", torch.zeros(3, dtype=torch.bool))
    kv.push("bool", torch.tensor([True, False, kv.rank == 0]))
    same(kv.pull("bool"), [True, False, True])


@case(needs="torch")
def torch_bfloat16(create: Stores) -> None:
    import torch

    kv = create()
    kv.init("b", torch.zeros(3, dtype=torch.bfloat16))
    kv.push("b", [torch.full((3,), value, dtype=torch.bfloat16) for value in (256, 1, 1)])
    out = torch.zeros(3, dtype=torch.bfloat16)
    kv.pull("b", out=out)
    want = torch.tensor(258.0 * kv.num_workers).to(torch.bfloat16).item()
    same(out.float().numpy(), want)


@case(needs="torch")
def torch_misuse(create: Stores) -> None:
    import torch

    kv = probed(create)
    with refused(kv, ShapeMismatch, "3", "(2, 3)", "(3, 2)"):
        kv.push(3, torch.ones(3, 2))
    with refused(kv, DTypeMismatch, "3", "float32", "float64"):
        kv.push(3, torch.ones(2, 3, dtype=torch.float64))
    with refused(kv, UsageError, "3", "sparse"):
        kv.push(3, torch.ones(2, 3).to_sparse())
    room = torch.zeros(3, 3)
    with refused(kv, UsageError, "overlap"):
        kv.pull([3, 5], out=[room[:2], room[1:]])
    same(room.numpy(), 0)
    intact(kv)


@case(needs="torch")
def torch_and_numpy_overlap(create: Stores) -> None:
    import torch

    kv = probed(create)
    room = np.zeros((3, 3), np.float32)
    with refused(kv, UsageError, "overlap"):
        kv.pull([3, 5], out=[room[:2], torch.from_numpy(room)[1:]])
    same(room, 0)
    intact(kv)


@case(needs="torch")
def torch_notices_that_a_tensor_of_a_graph_was_written(create: Stores) -> None:
    import torch

    kv = create()
    kv.init(["t", "u"], [torch.ones(2), torch.ones(2)])

    def in_a_group(out: Any) -> None:
        with kv.group():
            kv.pull("u", out=torch.zeros(2))
            kv.pull("t", out=out)

    writes: list[Callable[[Any], None]] = [
        lambda out: kv.pull("t", out=out),
        lambda out: kv.pull(["t", "u"], out=[[torch.zeros(2), out], torch.zeros(2)]),
        lambda out: kv.pull("t", out=out, local=True),
        lambda out: kv.pushpull("t", torch.ones(2), out=out),
        lambda out: kv.pushpull("t", out),
        lambda out: kv.broadcast("t", torch.ones(2), out=out),
        in_a_group,
    ]
    for write in writes:
        weight = torch.full((2,), 3.0, requires_grad=True)
        loss = (weight * weight).sum()
        write(weight)
        now = torch.zeros(2)
        kv.pull("t", out=now, local=True)
        assert weight.tolist() == now.tolist()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        (weight * weight).sum().backward()
        assert weight.grad.tolist() == (2 * now).tolist()


@case(needs="torch")
def torch_graphs_outlive_calls_that_write_nothing(create: Stores) -> None:
    import torch

    kv = create()
    kv.init("t", torch.ones(2))
    weight = torch.full((2,), 3.0, requires_grad=True)
    loss = (weight * weight).sum()
    kv.push("t", weight)
    with refused(kv, ShapeMismatch):
        kv.pull("t", out=[weight, torch.zeros(3)])
    with torch.inference_mode():
        out = torch.zeros(2)
        kv.pull("t", out=out)
    loss.backward()
    assert weight.grad.tolist() == [6, 6]
    assert out.tolist() == [3 * kv.num_workers] * 2
