"""Train a network of JAX on several ranks: the gradients, a pytree, pass through `pushpull`.

::

    mpirun -n 4 python docs/examples/jax_pytree.py

`average_over` has the form of a gradient transformation of optax, so it may be the first part of a
chain: ``optax.chain(average_over(kv), optax.adam(1e-3))``.  Needs the extra ``jax``; JAX may use
the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import ncclkv

SAMPLES, STEPS, RATE = 240, 200, 0.1


class Transformation(NamedTuple):
    """A pair of functions, as optax has it."""

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


def average_over(kv: ncclkv.KVStore) -> Transformation:
    """Return the transformation that averages gradients over the ranks of a store.

    Its functions are called outside of ``jax.jit``.  The names of the leaves are the keys.
    """
    names: list[str] = []
    sums: list[Any] = []

    def init(params: Any) -> tuple[()]:
        leaves, _ = jax.tree_util.tree_flatten_with_path(params)
        for path, leaf in leaves:
            names.append(jax.tree_util.keystr(path))
            sums.append(np.empty(leaf.shape, leaf.dtype))
        kv.init(names, [leaf for _, leaf in leaves], op="avg")
        return ()

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        leaves, tree = jax.tree_util.tree_flatten(grads)
        kv.pushpull(names, leaves, out=sums)  # JAX's own arrays cannot be written
        # A copy: jax.numpy.asarray may keep the memory, which the next step overwrites.
        return tree.unflatten([jnp.array(each, copy=True) for each in sums]), state

    return Transformation(init, update)


KEPT = Transformation(lambda params: (), lambda grads, state, params=None: (grads, state))
"""The transformation of one process: gradients stay as they are."""


def first_params() -> dict[str, Any]:
    """Return the weights of a small network, equal on all ranks because the seed is."""
    keys = jax.random.split(jax.random.key(0))
    return {
        "hidden": {"w": 0.5 * jax.random.normal(keys[0], (2, 16)), "b": jnp.zeros(16)},
        "out": {"w": 0.5 * jax.random.normal(keys[1], (16, 1)), "b": jnp.zeros(1)},
    }


def loss(params: Any, x: Any, y: Any) -> Any:
    """Return the mean squared error."""
    hidden = jnp.tanh(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return jnp.mean((hidden @ params["out"]["w"] + params["out"]["b"] - y) ** 2)


def train(average: Transformation, mine: slice) -> tuple[float, Any]:
    """Train on some samples; return their last loss, and the parameters."""
    x = np.random.default_rng(3).uniform(-1, 1, (SAMPLES, 2)).astype(np.float32)
    y = x[:, :1] * x[:, 1:]
    value_and_grad = jax.jit(jax.value_and_grad(loss))
    params = first_params()
    state = average.init(params)
    for _ in range(STEPS):
        found, grads = value_and_grad(params, x[mine], y[mine])
        grads, state = average.update(grads, state, params)
        params = jax.tree_util.tree_map(lambda p, g: p - RATE * g, params, grads)
    return float(found), params


def main() -> None:
    """Train on all ranks, and compare with a process that has all samples."""
    with ncclkv.create("dist_sync") as kv:
        if SAMPLES % kv.num_workers:
            raise SystemExit(f"{SAMPLES} samples need a number of ranks that divides them")
        found, params = train(average_over(kv), slice(kv.rank, None, kv.num_workers))
        last = kv.allreduce(found, "avg")
        leaves = [np.asarray(each) for each in jax.tree_util.tree_leaves(params)]
        same = len(set(kv.allgather_object(b"".join(each.tobytes() for each in leaves)))) == 1
        if kv.rank == 0:
            whole, others = train(KEPT, slice(None))
            near = all(map(np.allclose, leaves, jax.tree_util.tree_leaves(others)))
            print(f"loss on {kv.num_workers} rank(s): {last:.6f}; in one process: {whole:.6f}")
            print("weights:", "bit-identical on all ranks" if same else "DIFFERENT between ranks")
            print("check:", "equal to one process" if near else "FAILED")


if __name__ == "__main__":
    main()
