"""Sums: how the keys of a store lie in its buckets, for programs that push whole buckets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from ncclkv.store.kvstore import KVStore

KeyT = TypeVar("KeyT", int, str)


def by_bucket(kv: KVStore, keys: Iterable[KeyT]) -> list[list[KeyT]]:
    """Return keys in groups, each of the keys of one bucket, in the order of launching; local.

    The keys have their places, as after `KVStore.grad_view`.
    """
    layout = kv._context.engine.layout
    groups: dict[int, list[KeyT]] = {}
    for key in keys:
        groups.setdefault(layout[key].state.bucket.index, []).append(key)
    return [groups[number] for number in sorted(groups)]
