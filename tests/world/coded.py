"""Sums of arrays that a store compresses, by a model of each rank, or node, that sends.

The arrays hold integers, so residuals are exact.  powersgd has as many columns as a matrix has
at most: its products are the sums of what ranks owe, but for roundings.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from ncclkv.env import split_node
from tests.codecs import MODELS
from tests.world.arrays import Array, reduced
from tests.world.plan import Key, KeyPlan

CODECS: dict[str, dict[str, Any]] = {
    "1bit": {"type": "1bit", "threshold": 0.5},
    "2bit": {"type": "2bit", "threshold": 16.0},
    "2bit of nodes": {"type": "2bit", "threshold": 16.0, "scope": "node"},
    "topk": {"type": "topk", "ratio": 0.1},
    "fp16": {"type": "fp16"},
    "powersgd": {
        "type": "powersgd",
        "rank": 3,
        "min_compression_rate": 0.01,
        "start_powerSGD_iter": 1,
    },
}
"""The parameters of the compression of a store, by names."""

EXACT = "fp16"
"""A type whose sums are those of the arrays: integers of 16 bits."""


class Coded:
    """Models of what the ranks of a store still have to send of their arrays.

    Parameters
    ----------
    name : str or None
        As in `CODECS`; None: nothing is compressed.
    size : int
        The count of ranks.
    """

    def __init__(self, name: str | None, size: int) -> None:
        self.name = name
        self._size = size
        self._owed: dict[tuple[Key, int], Any] = {}
        self._launches: dict[Key, int] = {}
        self._by_node = name is not None and CODECS[name].get("scope") == "node"

    def takes(self, key: KeyPlan) -> bool:
        """Return whether the sums of a key differ from those of its arrays."""
        if self.name in (None, EXACT) or key.dtype != "f4" or key.op not in ("sum", "avg"):
            return False
        if self._by_node and len(split_node(range(self._size), 0)) == self._size:
            return False
        count = int(np.prod(key.shape))
        return self.name != "topk" or _kept(count) * self._size < count

    def rounds(self, key: KeyPlan) -> bool:
        """Return whether sums of a key may differ from those of its arrays by roundings."""
        return self.name == "powersgd" and key.dtype == "f4" and key.op in ("sum", "avg")

    def reduced(self, key: KeyPlan, arrays: Mapping[int, Array], among: int) -> Array:
        """Return the sum of what ranks send of their arrays, or the average over `among` ranks."""
        if self.name == "powersgd":
            total = self._product(key.key, arrays)
        else:
            sent = [self._sent(key.key, *each) for each in self._senders(arrays).items()]
            total = np.sum(sent, axis=0, dtype=np.float32)
        return reduced([total], key.op, among)

    def _product(self, key: Key, arrays: Mapping[int, Array]) -> Array:
        """Return the sum of what ranks owe, and let each owe what is not its share of the sum."""
        self._launches[key] = self._launches.get(key, 0) + 1
        owed = {
            rank: self._owed.get((key, rank), np.zeros_like(array)) + array
            for rank, array in arrays.items()
        }
        total = np.sum([*owed.values()], axis=0, dtype=np.float32)
        if self._launches[key] > CODECS["powersgd"]["start_powerSGD_iter"]:
            share = total / np.float32(len(owed))
            self._owed.update({(key, rank): each - share for rank, each in owed.items()})
        return np.asarray(total)

    def _senders(self, arrays: Mapping[int, Array]) -> Mapping[int, Array]:
        """Return the array of each rank that sends: the first of a node sends for all."""
        if not self._by_node:
            return arrays
        added: dict[int, Array] = {}
        for rank, array in arrays.items():
            first = split_node(range(self._size), rank)[0]
            added[first] = added[first] + array if first in added else array
        return added

    def _sent(self, key: Key, rank: int, array: Array) -> Array:
        """Return what a rank sends of an array, and keep the rest."""
        if self.name == "topk":
            owed = self._owed.get((key, rank), np.zeros_like(array)) + array
            chosen = np.argsort(-np.abs(owed), axis=None, kind="stable")[: _kept(owed.size)]
            sent = np.zeros_like(owed)
            sent.flat[chosen] = owed.flat[chosen]
            self._owed[key, rank] = owed - sent
            return sent
        if (key, rank) not in self._owed:
            codec = CODECS[str(self.name)]
            self._owed[key, rank] = MODELS[codec["type"]](codec["threshold"], array.size)
        model = self._owed[key, rank]
        sent = model.push(array.reshape(-1))[1] * np.float32(model.step)
        return np.asarray(sent, np.float32).reshape(array.shape)

    def reset(self, key: Key) -> None:
        """Forget what ranks owe of a key, whose value is set."""
        for rank in range(self._size):
            self._owed.pop((key, rank), None)
        self._launches.pop(key, None)

    def state(self) -> tuple[str | None, Any]:
        """Return what a checkpoint has of it."""
        return self.name, copy.deepcopy((self._owed, self._launches))

    def restore(self, state: tuple[str | None, Any]) -> None:
        """Take what a checkpoint has: of another type, nothing."""
        name, kept = state
        self._owed, self._launches = copy.deepcopy(kept) if name == self.name else ({}, {})


def _kept(count: int) -> int:
    """Return the count of elements that topk sends."""
    return min(count, max(1, round(CODECS["topk"]["ratio"] * count)))
