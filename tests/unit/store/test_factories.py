"""Factories of stores: the names they have, and a kind of store that needs no communicator."""

from __future__ import annotations

from typing import Any

import pytest

import ncclkv
from ncclkv import KVStoreBase
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.errors import NotSupported, UsageError
from ncclkv.store.backends import RANKS
from ncclkv.store.factories import FACTORIES, over
from ncclkv.store.options import Options


class Remembering(KVStoreBase):
    """A store of no ranks that keeps what its factory was given."""

    type, rank, num_workers = "remembering", 0, 1

    def __init__(self, name: str, comm: Any, timeout: float | None, options: Options) -> None:
        self.given = name, comm, timeout, options


def test_a_new_kind_of_store_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FACTORIES, "remembering", Remembering)
    ranks = object()
    kv: Any = ncclkv.create("Remembering", comm=ranks, timeout=3, missing="zeros")
    assert isinstance(kv, Remembering)
    name, comm, timeout, options = kv.given
    assert (name, comm, timeout) == ("remembering", ranks, 3.0)
    assert options.missing == "zeros"
    again: Any = ncclkv.create("remembering")
    assert again.given[2] is None
    with pytest.raises(NotSupported, match="Remembering does not offer pushpull"):
        kv.pushpull("w", 1.0)


def test_a_new_name_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FACTORIES, "remembering", Remembering)
    with pytest.raises(UsageError, match="did you mean 'remembering'"):
        ncclkv.create("remembring")


def test_every_name_of_ranks_has_a_factory_and_is_taken() -> None:
    assert list(FACTORIES) == list(RANKS)
    for name in ("local", "dist_async"):
        with pytest.raises(UsageError, match="is the name of a built-in store"):
            KVStoreBase.register(type(name, (KVStoreBase,), {}))


def test_ranks_are_freed_if_no_store_is_made() -> None:
    ranks = SoloCommunicator(3.0)
    closed: list[bool] = []
    ranks.close = lambda: closed.append(True)  # type: ignore[method-assign]
    factory = over(lambda name, comm, timeout: ranks)
    with pytest.raises(UsageError, match="root"):
        factory("local", None, None, Options(update_on="root", root=7))
    assert closed == [True]
