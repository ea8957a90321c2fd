"""Errors of `save` and `load`: equal on every rank, with the store unchanged."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import ncclkv.optimizer as optimizer
from ncclkv.errors import CheckpointError, UsageError
from tests.conformance.checkpoints import Sum, leads, new_store
from tests.conformance.expect import check_words, full, intact, probed, pulled, refused, same
from tests.conformance.registry import case
from tests.conformance.stores import Stores


@contextmanager
def failing(kv: Any, verb: str, *words: str) -> Iterator[None]:
    """Expect a `CheckpointError` on every rank, which names the leader, its host, and `words`."""
    with pytest.raises(CheckpointError) as caught:
        yield
    leads_here = kv.local_rank == kv.rank
    host = f"(host {socket.gethostname() if leads_here else ''}"
    check_words(caught.value, f"{verb} on rank 0 of {kv.num_workers}", host, *words)


@case(needs="safetensors")
def wrong_arguments(create: Stores) -> None:
    kv = probed(create)
    anything: Any
    with TemporaryDirectory() as directory:
        for anything in (-1, 1.0, True, None, "3"):
            with refused(kv, UsageError, "save: step="):
                kv.save(directory, step=anything)
        for anything in (0, None, 2.0):
            with refused(kv, UsageError, "save: keep="):
                kv.save(directory, keep=anything)
        deep: Any = []
        for _ in range(10**5):
            deep = [deep]
        wrong: dict[str, Any] = {
            "extra['a'][1] is nan": {"a": [1, float("nan")]},
            "extra is a set": {1},
            "extra is an int of more than 1000 digits": 10**5000,
            "extra['rng'] is a ndarray": {"rng": np.zeros(2)},
            "extra has the key 3": {3: 4},
            "nested too deeply": deep,
        }
        for words, extra in wrong.items():
            with refused(kv, UsageError, words):
                kv.save(directory, extra=extra)
        assert os.listdir(directory) == []
    for anything in (3, b"bytes", ["list"]):
        for verb in (kv.save, kv.load):
            with refused(kv, UsageError, "is not a path"):
                verb(anything)
    with refused(kv, UsageError, "no optimizer is set", "set_optimizer"):
        kv.save_optimizer_states("states")
    with refused(kv, UsageError, "no optimizer is set", "set_optimizer"):
        kv.load_optimizer_states("states")
    intact(kv)


@case(needs="safetensors")
def no_directory(create: Stores) -> None:
    kv = probed(create)
    assert "NCCLKV_CHECKPOINT" not in os.environ, "the tests are not to write there"
    for verb in (kv.save, kv.load):
        with refused(kv, UsageError, "no directory was given", "ncclkv run --checkpoint"):
            verb()
    intact(kv)


@case(needs="safetensors")
def a_directory_without_a_checkpoint(create: Stores) -> None:
    kv = probed(create)
    advice = "load(required=False) at a first start"
    with TemporaryDirectory() as empty, failing(kv, "load", "holds no checkpoint", advice):
        kv.load(empty)
    intact(kv)


@case(needs="safetensors")
def a_file_where_the_directory_should_be(create: Stores) -> None:
    kv = probed(create)
    with TemporaryDirectory() as directory:
        path = Path(directory, "file")
        path.write_text("mine")
        for verb in (kv.save, kv.load):
            for where in (path, path / "below"):
                with failing(kv, verb.__name__, "ile"):
                    verb(where)
        assert path.read_text() == "mine"
        with failing(kv, "save", "null byte"):
            kv.save("a\0b")
    intact(kv)


@case(needs="safetensors")
def other_keys(create: Stores) -> None:
    stores: dict[str, Callable[[Any], None]] = {
        "the store has key 3: float64 (2, 3) sum": lambda kv: kv.init(
            [3, 5], [full(1, dtype=np.float64), full(1)]
        ),
        "the store has key 5: float32 (3, 2) sum": lambda kv: kv.init(
            [3, 5], [full(1), full(1, (3, 2))]
        ),
        "the store has nothing, the checkpoint key 5:": lambda kv: kv.init(3, full(1)),
        "the store has key 7: float32 (2, 3) sum, the checkpoint nothing": lambda kv: kv.init(
            [3, 5, 7], [full(1)] * 3
        ),
        "the store has key 5: float32 (2, 3) max": lambda kv: (
            kv.init(3, full(1)),
            kv.init(5, full(1), op="max"),
        ),
        "and 1 more keys": lambda kv: kv.init(["3", "5"], [full(1)] * 2),
    }
    with TemporaryDirectory() as directory:
        probed(create).save(directory)
        for words, init in stores.items():
            with new_store(create) as kv:
                init(kv)
                with failing(kv, "load", words, "without keys"):
                    kv.load(directory)
                for key in list(kv.keys()):
                    same(kv.pull(key), 1)


@case(needs="safetensors")
def another_updater(create: Stores) -> None:
    class Own(optimizer.SGD):
        pass

    with TemporaryDirectory() as directory:
        kv = probed(create)
        kv.set_optimizer(optimizer.SGD(learning_rate=0.5, momentum=0.5))
        kv.push(3, full(1))
        kv.save(directory)
        wrong: dict[str, Callable[[Any], None]] = {
            "the optimizer SGD": lambda kv: kv.set_updater(lambda key, grad, stored: None),
            "and this store has ": lambda kv: kv.set_optimizer(Own(momentum=0.5)),
            "momentum of SGD(": lambda kv: kv.set_optimizer(optimizer.SGD(momentum=0.25)),
        }
        for words, setting in wrong.items():
            with new_store(create) as other:
                other.init([3, 5], [full(2), full(4)])
                setting(other)
                with failing(other, "load", words):
                    other.load(directory)
                same(pulled(other, 3), 2)
        kv.set_optimizer(Own(momentum=0.5))
        kv.save(directory)
        with new_store(create) as other:
            with failing(other, "load", "the optimizer Own", "set_optimizer"):
                other.load(directory)
            assert other.keys() == []
            intact_after_init(other)


def intact_after_init(kv: Any) -> None:
    """Check that a store that has loaded nothing accepts keys."""
    kv.init([3, 5], [full(2), full(4)])
    intact(kv)


class Failing(Sum):
    """Updater whose state can be neither read nor set."""

    def state_dict(self) -> dict[Any, Any]:
        raise OverflowError("too much to remember")

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        raise OverflowError("too much to learn")


@case(needs="safetensors")
def an_updater_that_fails(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = probed(create)
        kv.set_updater(Sum(1.0))
        kv.push(3, full(1))
        kv.save(directory)
        kv.set_updater(lambda key, grad, stored: None)
        with failing(kv, "load", "has no load_state_dict", "set_updater"):
            kv.load(directory)
        kv.set_updater(Failing(1.0))
        kv.reset(3, full(2))
        with failing(kv, "save", "OverflowError: too much to remember"):
            kv.save(directory)
        with pytest.raises(CheckpointError) as caught:
            kv.load(directory)
        check_words(caught.value, "OverflowError: too much to learn", "values are unchanged")
        same(pulled(kv, 3), 2)
        wrong: dict[str, Any] = {
            "returned a list": [1],
            "state_dict()['a'] of the updater is a set": {"a": {1}},
            "no store holds dtype": {"a": np.array(["text"])},
            "keys are int or str": {None: 3},
        }
        for words, state in wrong.items():
            updater: Any = Sum(1.0)
            updater.state_dict = lambda state=state: state
            kv.set_updater(updater)
            with refused(kv, UsageError, words):
                kv.save(directory)
        same(pulled(kv, 3), 2)


@case(needs="safetensors")
def kinds_of_checkpoint(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = probed(create)
        kv.save(directory)
        kv.set_optimizer(optimizer.SGD(momentum=0.5))
        with failing(kv, "load_optimizer_states", "holds no optimizer"):
            kv.load_optimizer_states(directory)
        for _ in range(3):
            kv.save_optimizer_states(directory)
        names = sorted(os.listdir(directory))
        assert names == ["step-000000000-save-000001", "step-000000000-save-000004-states"] or (
            not leads(kv)
        )
        with failing(kv, "load", "no values", "load_optimizer_states"):
            kv.load(os.path.join(directory, "step-000000000-save-000004-states"))
        kv.load(directory)  # the older checkpoint, which has values
        kv.load_optimizer_states(directory)
        with new_store(create) as other:
            other.set_optimizer(optimizer.SGD(momentum=0.5))
            with failing(other, "load_optimizer_states", "keys are not the store's"):
                other.load_optimizer_states(directory)


@case(needs="safetensors")
def a_damaged_checkpoint(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = probed(create)
        paths = [Path(kv.save(directory, step=number)) for number in (1, 2)]
        kv.reset(3, full(8))
        if leads(kv):
            damage(max(paths[1].glob("tensors-0000*.safetensors")))
        name = paths[1].name
        with failing(kv, "load", name, "tensors-0000", "SHA-256", "intact", "kv.load("):
            kv.load(directory)
        same(pulled(kv, 3), 8)
        kv.load(paths[0])
        intact(kv)
        if leads(kv):
            damage(paths[0] / "checkpoint.json")
        with failing(kv, "load", "SHA-256", "none of the 1 older"):
            kv.load(directory)
        with new_store(create) as other:
            with failing(other, "load", paths[0].name, "checkpoint.json", "damaged"):
                other.load(paths[0])
            assert other.keys() == []
            intact_after_init(other)


def damage(path: Path) -> None:
    """Change a bit of a file."""
    blob = bytearray(path.read_bytes())
    blob[len(blob) // 2] ^= 1
    path.write_bytes(blob)
