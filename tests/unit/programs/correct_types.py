"""Correct calls in every form; a type checker reads them, and no test runs them."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ncclkv
from ncclkv.typing import ArrayLike, Key, Op, Updater


class Name(str, Enum):
    W = "w"


class Tensor:
    """An array with the signatures of torch's tensors."""

    def __dlpack__(self, stream: Any = None, *, max_version: Any = None) -> Any:
        return self

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Adder:
    def update(self, key: Key, gradient: NDArray[Any], stored: NDArray[Any]) -> None:
        stored += gradient


def add(key: str, gradient: NDArray[np.float32], stored: NDArray[np.float32]) -> None:
    stored += gradient


def train(weight: NDArray[np.float32], tensor: Tensor, reduction: Op) -> NDArray[Any]:
    kv: ncclkv.KVStore = ncclkv.create("dist", update_on="root", root=0, bucket_bytes="auto")
    kv.init("w", weight, op=reduction)
    kv.init(["a", "b"], [weight, tensor], op="avg")
    kv.init([5, 7], (weight, weight.astype(np.int64)))
    kv.init(np.int64(3), np.zeros((), bool))
    kv.push(Name.W, tensor, priority=2)
    kv.push([Name.W], [weight])
    kv.push(("a", "b"), [[weight, weight], tensor])
    kv.push(3, [np.float32(1), np.float32(2)])
    kv.init("loss", 0.0)
    kv.init(["count", "done"], (0, False))
    kv.push("loss", [0.5, weight[0], 2])
    kv.push(["count", "w"], [1, weight])
    kv.pushpull("loss", 1j, out=weight)
    kv.reset("loss", 0)
    kv.broadcast("loss", 1.5, out=weight)
    several: list[NDArray[Any]] = kv.pull(["a", "b"])
    one: NDArray[Any] = kv.pull("w", local=True)
    kv.pull("w", out=one)
    kv.pull(["a", "b"], out=several, priority=1)
    kv.pull(["a", "b"], [tensor, [weight, weight]])
    kv.pushpull("w", weight, out=[weight, tensor])
    kv.broadcast("w", weight, out=weight)
    kv.set_updater(add)
    kv.set_updater(Adder())
    updater: Updater = lambda key, gradient, stored: None  # noqa: E731
    kv.set_updater(updater)
    kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=0.1, momentum=0.9))
    kv.set_optimizer(
        ncclkv.optimizer.AdamW(learning_rate=0.1, beta1=0.8, wd=0.1, clip_gradient=None)
    )
    given: ArrayLike = tensor
    kv.reset("w", given)
    kv.grad_view("w")[:] = 1
    kv.wait()
    kv.wait(["a", "b"])
    summed: NDArray[Any] = kv.allreduce(weight)
    worst: float = kv.allreduce(0.5, "max")
    steps: int = kv.allreduce(3, op="max")
    mean: float = kv.allreduce(3, "avg")
    either: float = kv.allreduce(steps, op=reduction)
    every: list[Any] = kv.allreduce([weight, tensor, 1.5], "avg")
    kv.allreduce(weight, out=weight)
    kv.allreduce([weight, steps, mean, either], out=[summed, tensor, tensor, tensor])
    ranks: NDArray[Any] = kv.allgather(worst)
    parts: list[NDArray[Any]] = kv.allgather([weight, *every])
    kv.allgather(tensor, out=ranks)
    kv.allgather((weight, 2), out=parts)
    names: list[str] = kv.allgather_object("name")
    options: dict[str, float] = kv.broadcast_object({"lr": 0.1} if names else None, root=0)
    options.clear()
    loaded = kv.load("saved", required=False, fallback=True)
    step: int = 0 if loaded is None else loaded.step
    kv.save("saved", step=step, extra={"epoch": 1})
    keys: list[Key] = kv.keys()
    with kv, kv.group():
        kv.push(keys, [kv.value(key) for key in keys])
    return one
