"""Properties and reports of a store that need no other rank."""

from __future__ import annotations

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import UsageError
from ncclkv.kernels.host import HostKernels
from tests.conformance.expect import SHAPE, check_words, full, intact, probed, pulled, same
from tests.conformance.registry import case
from tests.conformance.stores import Stores
from tests.harness.context import context_of


@case()
def rank_and_size(create: Stores) -> None:
    kv = create()
    assert 0 <= kv.rank < kv.num_workers
    assert 0 <= kv.local_rank <= kv.rank
    kv.init("seen", full(0, (kv.num_workers,)))
    mine = full(0, (kv.num_workers,))
    mine[kv.rank] = 1
    kv.push("seen", mine)
    same(pulled(kv, "seen", mine), 1)


@case()
def properties_cannot_be_set(create: Stores) -> None:
    kv = create()
    for name in ("rank", "num_workers", "type", "local_rank"):
        with pytest.raises(AttributeError):
            setattr(kv, name, 5)


@case()
def the_type_is_the_name_it_was_created_with(create: Stores) -> None:
    assert create().type == create.name


@case()
def keys_in_registry_order(create: Stores) -> None:
    kv = create()
    assert list(kv.keys()) == []
    kv.init([9, 3], [full(0), full(0)])
    kv.broadcast(5, full(0), full(0))
    assert list(kv.keys()) == [9, 3, 5]
    assert 3 in kv
    assert 4 not in kv
    assert "3" not in kv


@case()
def objects_that_are_no_keys_are_not_in_the_store(create: Stores) -> None:
    kv = probed(create)
    for thing in (None, 3.0, b"3", True, [3]):
        assert thing not in kv


@case()
def spec_of_a_key(create: Stores) -> None:
    kv = create()
    kv.init("a", full(0))
    kv.init("b", full(0, (4,), np.int64), op="max")
    first, second = kv.spec("a"), kv.spec("b")
    assert (first.key, first.shape, first.dtype, first.op) == ("a", SHAPE, np.float32, "sum")
    assert (second.key, second.shape, second.dtype, second.op) == ("b", (4,), np.int64, "max")
    assert (first.index, second.index) == (0, 1)


@case()
def repr_shows_rank_keys_and_updater(create: Stores) -> None:
    kv = probed(create)
    text = repr(kv)
    here = f"rank {kv.rank} of {kv.num_workers}"
    owner = {"root": "rank 0", "sharded": "owners"}.get(create.update_on, "every rank")
    where = f"update on {owner}"
    for word in (create.name, here, "2 keys", where, "updater none"):
        assert word in text, text
    kv.close()
    assert "closed" in repr(kv)


@case()
def plan_names_every_key_and_bucket(create: Stores) -> None:
    kv = create(bucket_bytes=4096)
    kv.init(["small", "other"], [full(0), full(0, dtype=np.int32)])
    kv.init("large", full(0, (3000,)))
    before = kv.explain_plan()
    kv.push("small", full(1))
    kv.wait()
    after = kv.explain_plan()
    for word in ("small", "other", "large"):
        assert word in before
        assert word in after
    for word in ("float32", "int32", "sum"):
        assert word in after


@case()
def plan_counts_calls_and_names_keys_without_c(create: Stores) -> None:
    kv = create()
    kv.init(["a", "b"], [full(0), full(0, dtype=np.int32)])
    value, out = full(1), full(0)
    for _ in range(3):
        kv.push("a", value)
        kv.pull("a", out)
    lines = kv.explain_plan().splitlines()
    for calls in ("pushes", "pulls"):
        (line,) = (each for each in lines if each.startswith(calls))
        assert line.startswith(f"{calls}: 2 found prepared, 1 checked anew, the last of 'a': ")
    named = [each for each in lines if each.startswith("without C: ")]
    on_host = isinstance(context_of(kv).comm.kernels, HostKernels)
    assert len(named) == on_host
    assert all("'b'" in each for each in named)


@case()
def capabilities(create: Stores) -> None:
    kv = probed(create)
    assert kv.is_capable("optimizer") is True
    assert kv.is_capable("Optimizer") is True
    assert kv.is_capable(ncclkv.KVStoreBase.OPTIMIZER) is True
    with pytest.raises(UsageError) as caught:
        kv.is_capable("teleport")
    # The class has this method, too, so the error names no rank.
    check_words(caught.value, "'teleport'", "optimizer")
    assert type(kv).is_capable("OPTIMIZER") is True
    intact(kv)
