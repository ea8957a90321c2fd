"""The trainer over MPI: every placement gives the numbers of one process with all the samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import ncclkv
from ncclkv.errors import OrderMismatch
from ncclkv.optimizer import LAMB, LARS, SGD
from tests.codecs import TwoBit

RATE, MOMENTUM, STEPS = 0.125, 0.5, 4
SHAPES = {"matrix": (64, 300), "bias": (300,), "scale": ()}


def gradient(name: str, step: int, rank: int) -> Any:
    """Return small integers, so that sums are exact."""
    count = int(np.prod(SHAPES[name]))
    return ((np.arange(count) + 3 * step + rank) % 5 - 2.0).reshape(SHAPES[name])


def expected(size: int) -> dict[str, Any]:
    """Return the weights after all steps, from zeros."""
    weights = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    momenta = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for step in range(STEPS):
        for name in SHAPES:
            total = sum(gradient(name, step, rank) for rank in range(size)) / 4
            momenta[name] = MOMENTUM * momenta[name] - RATE * total
            weights[name] = weights[name] + momenta[name]
    return weights


@pytest.mark.limit(60)
@pytest.mark.parametrize(
    ("update_on", "on_store"),
    [("every_rank", True), ("root", True), ("sharded", True), ("every_rank", False)],
)
def test_every_placement_makes_the_same_steps(
    comm_world: MPI.Intracomm, update_on: Any, on_store: bool
) -> None:
    weights = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    with ncclkv.create("dist_sync", update_on=update_on) as kv:
        sgd = SGD(learning_rate=RATE, momentum=MOMENTUM)
        trainer = ncclkv.Trainer(weights, sgd, kvstore=kv, update_on_kvstore=on_store)
        for step in range(STEPS):
            trainer.grads.update({name: gradient(name, step, kv.rank) for name in SHAPES})
            trainer.step(4)
        wanted = expected(kv.num_workers)
    for name, weight in weights.items():
        np.testing.assert_array_equal(weight, wanted[name], err_msg=name)


@pytest.mark.limit(60)
@pytest.mark.parametrize(
    "make",
    [
        lambda: LARS(learning_rate=0.5, momentum=0.5, eta=0.5, clip_global_norm=2.0),
        lambda: LAMB(learning_rate=0.125, clip_global_norm=2.0),
    ],
    ids=["lars", "lamb"],
)
def test_norms_are_those_of_whole_parameters(comm_world: MPI.Intracomm, make: Any) -> None:
    """Compare the store's placements with updates on each rank, which have whole parameters."""
    found = []
    for update_on, on_store in (
        ("every_rank", False),
        ("every_rank", True),
        ("root", True),
        ("sharded", True),
    ):
        weights = {name: np.ones(shape) for name, shape in SHAPES.items()}
        with ncclkv.create("dist_sync", update_on=update_on) as kv:
            trainer = ncclkv.Trainer(weights, make(), kvstore=kv, update_on_kvstore=on_store)
            for step in range(STEPS):
                trainer.grads.update({name: gradient(name, step, kv.rank) for name in SHAPES})
                trainer.step(4)
        found.append(weights)
    for weights in found[1:]:
        for name, weight in weights.items():
            # The sums of squares differ in their last bits.
            np.testing.assert_allclose(weight, found[0][name], rtol=1e-13, err_msg=name)


@pytest.mark.limit(60)
@pytest.mark.parametrize(
    ("update_on", "on_store"),
    [("every_rank", False), ("every_rank", True), ("sharded", True)],
)
def test_states_are_saved_and_loaded_between_steps(
    comm_world: MPI.Intracomm,
    tmp_path_factory: pytest.TempPathFactory,
    update_on: Any,
    on_store: bool,
) -> None:
    rank = comm_world.Get_rank()
    folder = comm_world.bcast(tmp_path_factory.mktemp("states") if rank == 0 else None)
    weights = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for step in range(STEPS):
        with ncclkv.create("dist_sync", update_on=update_on) as kv:
            sgd = SGD(learning_rate=RATE, momentum=MOMENTUM)
            trainer = ncclkv.Trainer(weights, sgd, kvstore=kv, update_on_kvstore=on_store)
            if step > 0:
                trainer.load_states(folder)
            trainer.grads.update({name: gradient(name, step, rank) for name in SHAPES})
            trainer.step(4)
            trainer.save_states(Path(folder))
    for name, wanted in expected(comm_world.Get_size()).items():
        np.testing.assert_array_equal(weights[name], wanted, err_msg=name)


@pytest.mark.limit(60)
def test_other_parameters_on_a_rank_are_a_mismatch(comm_world: MPI.Intracomm) -> None:
    if comm_world.Get_size() == 1:
        pytest.skip("one rank has nobody to differ from")
    with pytest.raises(OrderMismatch, match=r"'a'"):
        _step_of_other_parameters()


def _step_of_other_parameters() -> None:
    """Take a step in which rank 0 leaves out a parameter."""
    weights = {"a": np.zeros(2), "b": np.zeros(2)}
    with ncclkv.create("dist_sync") as kv:
        trainer = ncclkv.Trainer(weights, "sgd", kvstore=kv)
        trainer.grads["a"] = np.ones(2)
        if kv.rank > 0:
            trainer.grads["b"] = np.ones(2)
        trainer.step(1, ignore_stale_grad=True)
        kv.barrier()


@pytest.mark.limit(60)
@pytest.mark.parametrize("update_on", ["every_rank", "sharded"])
def test_other_batch_sizes_on_a_rank_are_a_mismatch(
    comm_world: MPI.Intracomm, update_on: Any
) -> None:
    if comm_world.Get_size() == 1:
        pytest.skip("one rank has nobody to differ from")
    # A rank may find another rank's difference, or its own.
    others = "|".join(str(1 / (4 + rank)) for rank in range(1, comm_world.Get_size()))
    text = rf"rank 0 called .*rescale_grad=0\.25\).* called .*rescale_grad=({others})\)"
    with pytest.raises(OrderMismatch, match=text):
        _step_of_other_batch_sizes(update_on)


def _step_of_other_batch_sizes(update_on: Any) -> None:
    """Take a step in which each rank has its own batch size."""
    with ncclkv.create("dist_sync", update_on=update_on) as kv:
        trainer = ncclkv.Trainer([("a", np.zeros(2), np.ones(2))], "sgd", kvstore=kv)
        trainer.step(4 + kv.rank)


@pytest.mark.limit(60)
@pytest.mark.parametrize(
    ("update_on", "on_store"),
    [("every_rank", True), ("root", True), ("sharded", True), ("every_rank", False)],
)
def test_compressed_gradients_on_every_placement(
    comm_world: MPI.Intracomm, update_on: Any, on_store: bool
) -> None:
    size = comm_world.Get_size()
    shapes = SHAPES
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    wanted = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    senders = {
        name: [TwoBit(1.0, int(np.prod(shape))) for _ in range(size)]
        for name, shape in shapes.items()
    }
    with ncclkv.create("dist_sync", update_on=update_on) as kv:
        trainer = ncclkv.Trainer(
            weights, "sgd", {"learning_rate": RATE}, kv, {"type": "2bit", "threshold": 1}, on_store
        )
        for step in range(STEPS):
            mine = {name: np.asarray(gradient(name, step, kv.rank), np.float32) for name in shapes}
            trainer.grads.update(mine)
            trainer.step(4)
            for name, models in senders.items():
                of_ranks = [
                    np.asarray(gradient(name, step, rank), np.float32) for rank in range(size)
                ]
                counts = [
                    model.push(array.reshape(-1))[1]
                    for model, array in zip(models, of_ranks, strict=True)
                ]
                wanted[name] -= np.float32(RATE / 4) * sum(counts).reshape(SHAPES[name])
        for name, weight in weights.items():
            np.testing.assert_array_equal(weight, wanted[name], err_msg=name)
