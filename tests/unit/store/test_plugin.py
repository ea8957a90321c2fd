"""Stores of other makers, registered by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ncclkv
from ncclkv import KVStoreBase
from ncclkv.errors import UsageError


def arrays(value: Any) -> list[NDArray[Any]]:
    """Return an array or several as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


class TestStore(KVStoreBase):
    """MXNet's store of that name: it sums the arrays of one process, and keeps nothing."""

    __test__ = False

    type, rank, num_workers = "teststore", 0, 1

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        if isinstance(key, list):
            for each, source, target in zip(key, value, out, strict=True):
                self.broadcast(each, source, target)
            return
        for target in arrays(out):
            target[...] = value

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        out = value if out is None else out
        if isinstance(key, list):
            for each, source, target in zip(key, value, out, strict=True):
                self.pushpull(each, source, target)
            return
        total = np.sum(arrays(value), axis=0)
        for target in arrays(out):
            target[...] = total

    @staticmethod
    def is_capable(capability: str) -> bool:
        return False


@pytest.fixture(autouse=True)
def registry() -> Iterator[dict[str, type]]:
    """Restore the registry after the test."""
    before = dict(KVStoreBase.kv_registry)
    yield KVStoreBase.kv_registry
    KVStoreBase.kv_registry.clear()
    KVStoreBase.kv_registry.update(before)


def test_register_returns_the_class_and_create_finds_it() -> None:
    assert KVStoreBase.register(TestStore) is TestStore
    for name in ("teststore", "TestStore", "TESTSTORE"):
        assert type(ncclkv.create(name)) is TestStore
    assert ncclkv.create("teststore").type == "teststore"


def test_mxnets_tests_of_a_registered_store() -> None:
    KVStoreBase.register(TestStore)
    kv = ncclkv.create("teststore")
    one = np.ones((4, 4))
    out = np.zeros((4, 4))
    for _ in range(2):
        kv.broadcast("1", one, out)
        assert (out == 1).all()
    outs = [np.zeros((4, 4)), np.zeros((4, 4))]
    kv.pushpull("1", [one, one], out=outs)
    assert all((each == 2).all() for each in outs)
    value = np.full((4, 4), 2.0)
    kv.pushpull("1", [value, value])
    assert (value == 4).all()
    keys = ["b", "c", "d"]
    lists = [[np.zeros((4, 4)) for _ in range(4)] for _ in keys]
    kv.pushpull(keys, [[np.full((4, 4), 2.0)] * 4] * 3, out=lists)
    assert all((each == 8).all() for row in lists for each in row)
    assert not kv.is_capable(KVStoreBase.OPTIMIZER)


def test_missing_verbs_of_a_registered_store() -> None:
    KVStoreBase.register(TestStore)
    kv = ncclkv.create("teststore")
    for verb, argument in (
        ("set_optimizer", ncclkv.optimizer.SGD()),
        ("save_optimizer_states", "states"),
        ("load_optimizer_states", "states"),
    ):
        with pytest.raises(NotImplementedError) as caught:
            getattr(kv, verb)(argument)
        assert verb in str(caught.value)
        assert "TestStore" in str(caught.value)


def test_an_empty_class_has_no_verbs() -> None:
    @KVStoreBase.register
    class Bare(KVStoreBase):
        pass

    kv = ncclkv.create("bare")
    for name in ("type", "rank", "num_workers"):
        with pytest.raises(NotImplementedError, match=name):
            getattr(kv, name)
    with pytest.raises(NotImplementedError, match="pushpull"):
        kv.pushpull(1, np.ones(1))
    with pytest.raises(NotImplementedError, match="broadcast"):
        kv.broadcast(1, np.ones(1), np.ones(1))
    with pytest.raises(NotImplementedError, match="is_capable"):
        kv.is_capable("optimizer")


def test_a_second_class_of_one_name_replaces_with_a_warning() -> None:
    KVStoreBase.register(TestStore)
    other = type("TESTSTORE", (TestStore,), {})
    with pytest.warns(UserWarning, match="teststore") as caught:
        KVStoreBase.register(other)
    assert "TestStore" in str(caught[0].message)
    assert type(ncclkv.create("teststore")) is other


@pytest.mark.parametrize("thing", ["teststore", None, 3, TestStore()])
def test_objects_that_are_no_classes_are_refused(thing: Any, registry: dict[str, type]) -> None:
    before = dict(registry)
    with pytest.raises(UsageError, match="class") as caught:
        KVStoreBase.register(thing)
    assert type(thing).__name__ in str(caught.value)
    assert registry == before


def test_the_names_of_registered_stores_are_listed() -> None:
    KVStoreBase.register(TestStore)
    with pytest.raises(UsageError, match="did you mean 'teststore'"):
        ncclkv.create("teststoer")


@pytest.mark.parametrize("name", ["Local", "DIST", "Dist_Sync", "threads", "NCCL", "dist_async"])
def test_built_in_names_are_refused(name: str, registry: dict[str, type]) -> None:
    before = dict(registry)
    with pytest.raises(UsageError) as caught:
        KVStoreBase.register(type(name, (KVStoreBase,), {}))
    for word in (f"class {name}", repr(name.lower()), "built-in", "name the class differently"):
        assert word in str(caught.value)
    assert registry == before


@pytest.mark.parametrize(
    "options", [{"update_on": "root"}, {"comm": object()}, {"root": 1, "timeout": 5.0}]
)
def test_registered_classes_take_no_options(options: dict[str, Any]) -> None:
    KVStoreBase.register(TestStore)
    with pytest.raises(UsageError, match=r"^create\('teststore'\) .* no options") as caught:
        ncclkv.create("TestStore", **options)
    assert f"was given {', '.join(options)};" in str(caught.value)


def test_default_options_are_accepted_for_registered_classes() -> None:
    KVStoreBase.register(TestStore)
    assert type(ncclkv.create("teststore", update_on="every_rank", root=0)) is TestStore
