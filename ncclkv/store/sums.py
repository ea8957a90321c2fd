"""Sums: stores whose keys have sums alone, and keys by bucket, to push whole buckets."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, TypeVar

from ncclkv.store.kvstore import KVStore
from ncclkv.table.registry import Key
from ncclkv.typing import Op

KeyT = TypeVar("KeyT", int, str)


def keep_sums(kv: KVStore) -> None:
    """Let a store without keys have keys of sums alone, made by `init_sums`; collective.

    The sum of a push stays in the key's gradient, where `KVStore.grad_view` shows it after a wait.
    """
    kv._updaters.keep_sums()


def init_sums(kv: KVStore, keys: list[KeyT], like: list[Any], op: Op = "sum") -> None:
    """Make keys of the shapes and dtypes of arrays, without memory for values; collective."""
    kv._registration.initialize_sums(keys, like, op)


class InPlace:
    """A push of several keys from their places; the arguments are checked once.

    Attributes
    ----------
    places : list of ndarray
        As by `KVStore.grad_view`, in the order of the keys.
    """

    def __init__(self, kv: KVStore, keys: list[KeyT]) -> None:
        self.places = [kv.grad_view(key) for key in keys]
        values: dict[Key, list[Any]] = {
            key: [place] for key, place in zip(keys, self.places, strict=True)
        }
        self._planned = kv._context.engine.plan_push(values)
        self._transfers = kv._transfers

    def push(self) -> None:
        """Push the keys; collective."""
        self._transfers.push_in_place(*self._planned)


def settle(kv: KVStore, keys: list[KeyT]) -> None:
    """Flush keys, and let later work wait for their sums; collective.

    As `KVStore.wait`, but on a GPU the host waits for nothing.
    """
    kv._waiting.wait_for(keys, blocks=False)


class SavedResiduals:
    """A copy of what compression keeps of a key on this rank: its residuals, and its basis.

    `restore` puts the copy back after a flush whose sum is dropped.
    """

    def __init__(self, kv: KVStore, key: Key) -> None:
        self._kernels = kv._context.comm.kernels
        reductions = kv._context.engine.reductions
        self._all_of = partial(reductions.residuals.all_of, key)
        self._copies = [self._kernels.copy(each) for each in self._all_of()]
        self._find_basis = partial(reductions.bases.find, key)
        basis = self._find_basis()
        self._state = None if basis is None else basis.state()

    def restore(self) -> None:
        """Give residuals and basis the copied values; a flush may not be in flight."""
        basis = self._find_basis()
        if basis is not None:
            basis.reset(self._state)
        for residual, copy in zip(self._all_of(), self._copies, strict=False):
            self._kernels.pack(copy, residual)


def by_bucket(kv: KVStore, keys: Iterable[KeyT]) -> list[list[KeyT]]:
    """Return keys in groups, each of the keys of one bucket, in the order of launching; local.

    The keys have their places, as after `KVStore.grad_view`.
    """
    layout = kv._context.engine.layout
    groups: dict[int, list[KeyT]] = {}
    for key in keys:
        groups.setdefault(layout[key].state.bucket.index, []).append(key)
    return [groups[index] for index in sorted(groups)]
