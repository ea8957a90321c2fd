"""The storages of keys: the classes and the rule of each, in a row of `STORAGES`.

Each key of a storage that is not dense has a bucket of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple

from ncclkv.engine.bucket_push import BucketPush, Indices
from ncclkv.engine.bucket_state import BucketState, Slot
from ncclkv.engine.storage import StoredBucket, StoredKey, StoredPush
from ncclkv.engine.update_rule import Rule
from ncclkv.errors import NotSupported
from ncclkv.table.bucket import Entry
from ncclkv.table.registry import DENSE, Key


class Storage(NamedTuple):
    """A storage: a form of values, and of what ranks push.

    Attributes
    ----------
    bucket : callable
        Returns the state of a new bucket, by the arguments of `BucketState`.
    key : callable
        Returns a key of that bucket, from its state and its entry.
    push : callable
        Returns the part of a push in one bucket, by the arguments of `BucketPush`.
    rule : callable
        Returns the rule of its keys, made anew from each rule that the program sets.
    """

    bucket: Callable[..., StoredBucket]
    key: Callable[[Any, Entry], StoredKey]
    push: Callable[[Sequence[Any], Mapping[Key, Indices], Set[Key], int], StoredPush]
    rule: Callable[[Rule], Rule]


STORAGES = {DENSE: Storage(BucketState, Slot, BucketPush, lambda rule: rule)}
"""The storages by their names, as in `KeySpec.storage`."""


def storage_of(name: str) -> Storage:
    """Return the storage of a name.

    Raises
    ------
    NotSupported
    """
    if name not in STORAGES:
        known = " or ".join(map(repr, STORAGES))
        raise NotSupported(f"storage {name!r} of keys is not in this version; use {known}")
    return STORAGES[name]


def rules_of(rule: Rule) -> dict[str, Rule]:
    """Return the rule of each storage, from the rule that the program has set."""
    return {name: storage.rule(rule) for name, storage in STORAGES.items()}
