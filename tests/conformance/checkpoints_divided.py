"""Checkpoints of a sharded store: each rank writes its parts, and any ranks load them.

All ranks of these cases see the directory of the rank that leads.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import ncclkv.optimizer as optimizer
from ncclkv.comm.destinations import Owners
from ncclkv.errors import CheckpointError
from tests.conformance.checkpoints import Sum, new_store
from tests.conformance.expect import check_words, full, pulled, same, total
from tests.conformance.registry import case
from tests.conformance.sharded import LARGE, SIZES, integers
from tests.conformance.stores import Stores
from tests.harness.context import context_of

KEYS = [*range(9)]


def arrays(factor: int) -> list[Any]:
    """Return an array for each of `KEYS`."""
    return [full(factor * key) for key in KEYS]


def owners(kv: Any) -> list[int]:
    """Return the rank that updates each key of a store with a function as updater."""
    found = []
    for key in list(kv.keys()):
        slot = context_of(kv).engine.layout[key]
        assert isinstance(slot.state.to, Owners)
        found.append(slot.state.to.owner(slot.entry.lo))
    return found


@case(needs="safetensors")
def parts_of_all_ranks_are_the_values_and_states(create: Stores) -> None:
    """Compare each loaded bit with the same steps on a store of every placement."""
    sizes = [*SIZES, *LARGE]
    keys = [*range(len(sizes))]

    def steps(kv: Any, first: int) -> list[bytes]:
        for number in range(first, first + 2):
            kv.push(keys, integers([number, kv.rank], sizes))
        outs = [np.empty(size, np.float32) for size in sizes]
        kv.pull(keys, out=outs)
        return [out.tobytes() for out in outs]

    with TemporaryDirectory() as directory:
        kv = create(update_on="sharded", bucket_bytes=4096)
        kv.init(keys, integers([99], sizes))
        kv.set_optimizer(optimizer.Adam(learning_rate=0.125))
        steps(kv, 0)
        kv.save(directory)
        expected = steps(kv, 2)
        for update_on in ("sharded", "every_rank", "root"):
            with new_store(create, update_on=update_on) as other:
                other.load(directory)
                assert steps(other, 2) == expected, update_on


@case(needs="safetensors")
def keys_without_a_bucket_are_saved_once(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create(update_on="sharded")
        kv.set_optimizer(optimizer.SGD(momentum=0.5))
        kv.init([0, 1, 2], [full(1), full(2), full(0, (0, 5))])
        kv.push(0, full(1))
        kv.init([3, 4], [full(3), full(0, (0,))])
        before = [pulled(kv, key, kv.pull(key)) for key in range(5)]
        kv.save(directory)
        with new_store(create, update_on="sharded") as other:
            other.load(directory)
            for key in range(5):
                same(pulled(other, key, before[key]), before[key])


@case(needs="safetensors")
def keys_that_have_a_bucket_on_one_rank(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create(update_on="sharded")
        kv.set_optimizer(optimizer.SGD(momentum=0.5))
        kv.init(KEYS, arrays(1))
        if kv.rank == kv.num_workers - 1:
            kv.value(0)  # seals the layout
        kv.save(directory)
        with new_store(create, update_on="sharded") as other:
            other.load(directory)
            for key in KEYS:
                same(pulled(other, key), key)


class Merged(Sum):
    """Updater whose ranks' states become one state: each sum is on one rank alone."""

    def merge_state_dicts(self, states: list[dict[Any, Any]]) -> dict[Any, Any]:
        return {key: item for state in states for key, item in state.items()}


@case(needs="safetensors")
def states_of_an_updater_on_each_owner(create: Stores) -> None:
    """Load at the same owners, then at others by ``merge_state_dicts``, or not at all."""
    with TemporaryDirectory() as directory:
        kv = create(update_on="sharded", bucket_bytes=1024)
        kv.init(KEYS, arrays(0))
        kv.set_updater(Sum(2.0))
        kv.push(KEYS, arrays(kv.rank + 1))
        kv.save(directory)
        for placement, words in (("sharded", ""), ("every_rank", "every rank"), ("root", "rank 0")):
            for updater in (Sum(7.0), Merged(7.0)):
                with new_store(create, update_on=placement, bucket_bytes=1024) as other:
                    other.set_updater(updater)
                    if kv.num_workers > 1 and words and type(updater) is Sum:
                        with pytest.raises(CheckpointError) as caught:
                            other.load(directory)
                        updates = f"on {kv.num_workers} ranks", f"this store updates on {words}"
                        check_words(caught.value, *updates, "updater Sum", "merge_state_dicts")
                        assert other.keys() == []
                        continue
                    other.load(directory)
                    other.push(KEYS, arrays(kv.rank + 1))
                    for key in KEYS:
                        same(pulled(other, key), 4 * key * total(kv))


@case(needs="safetensors")
def owners_that_have_changed(create: Stores) -> None:
    """Refuse the states of an updater if other buckets give a key to another rank."""
    arrays = [full(0, (size,)) for size in (1, 1, 1, 1, 900)]
    keys = [*range(len(arrays))]
    with TemporaryDirectory() as directory:
        kv = create(update_on="sharded", bucket_bytes=0)
        kv.init(keys, arrays)
        kv.set_updater(Sum(2.0))
        kv.push(keys, arrays)
        kv.save(directory)
        for known in (True, False):
            with new_store(create, update_on="sharded", bucket_bytes=1 << 20) as other:
                other.set_updater(Sum(7.0))
                if known:
                    other.init(keys, arrays)
                if kv.num_workers == 1:
                    other.load(directory)
                    continue
                with pytest.raises(CheckpointError) as caught:
                    other.load(directory)
                check_words(caught.value, "here rank", "updates key", "bucket_bytes")
                if known:
                    other.push(keys, arrays)
                    assert owners(other) != owners(kv)


class Stateless(Sum):
    """Updater that fails to return its state on the last owner alone."""

    def __init__(self, fails: bool) -> None:
        super().__init__(1.0)
        self.fails = fails

    def state_dict(self) -> dict[Any, Any]:
        if self.fails:
            raise OverflowError("too much to remember")
        return super().state_dict()


@case(needs="safetensors")
def a_state_that_one_rank_cannot_return(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create(update_on="sharded")
        kv.init(KEYS, arrays(0))
        last = kv.num_workers - 1
        kv.set_updater(Stateless(kv.rank == last))
        kv.push(KEYS, arrays(1))
        with pytest.raises(CheckpointError) as caught:
            kv.save(directory)
        words = f"save on rank {last} of {kv.num_workers} (host", "OverflowError: too much"
        check_words(caught.value, *words)
        assert kv.load(directory, required=False) is None
        same(pulled(kv, 1), kv.num_workers)
