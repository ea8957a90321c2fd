"""`Saturation`: warns of gradients that are larger than what their codes can send.

An element of 2bit sends at most one threshold a push.  Where gradients are larger, residuals grow
from push to push, and the training fails without an error.  A codec counts the residuals beyond its
bound while it encodes.  A GPU counts them, too, and no call waits for its counts: a look sees those
of an earlier launch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from ncclkv.compress.base import CountedCodec
from ncclkv.compress.coding import Found
from ncclkv.table.bucket import Entry
from ncclkv.table.key_names import listed
from ncclkv.table.registry import Key

_log = logging.getLogger("ncclkv")

FIRST, EVERY = 10, 100
"""The launch of a range after which residuals are looked at first, and launches between looks."""

SHARE = 0.02
"""Share of a key's residuals beyond the bound from which the key is warned of."""


class Saturation:
    """The residuals of each key that stay beyond the bound of its codec, on this rank.

    Parameters
    ----------
    rank : int
        Rank 0 warns, of each key once.
    first_node : sequence of int
        The ranks of its node.  If nodes send, each of these ranks warns of the keys in its slices.
    """

    def __init__(self, rank: int, first_node: Sequence[int] = (0,)) -> None:
        self._warns = rank == 0
        self._warns_of_slices = rank in first_node
        self._launches: dict[Key, int] = {}
        self._beyond: dict[Key, tuple[Sequence[int], int]] = {}
        self._warned: set[Key] = set()

    def share(self, key: Key, size: int) -> float:
        """Return the share of a key's `size` residuals that its last launch left beyond.

        On a GPU it may be that of an earlier launch: the call waits for none.
        """
        if not size or key not in self._beyond:
            return 0.0
        found, index = self._beyond[key]
        return found[index] / size

    def note(self, codec: CountedCodec, entries: Sequence[Entry], found: Found) -> None:
        """Note a launch of a range, and warn of its keys if many residuals are beyond the bound.

        Parameters
        ----------
        codec : CountedCodec
        entries : sequence of Entry
            The keys of the range, at least one.
        found : Found
            Of these keys.
        """
        keys = [entry.key for entry in entries]
        beyond = found.beyond
        self._beyond.update((key, (beyond, index)) for index, key in enumerate(keys))
        launches = self._launches[keys[0]] = self._launches.get(keys[0], 0) + 1
        warns = self._warns_of_slices if codec.parameters["scope"] == "node" else self._warns
        if warns and (launches == FIRST or launches % EVERY == 0):
            self._look(codec, entries, found)

    def _look(self, codec: CountedCodec, entries: Sequence[Entry], found: Found) -> None:
        """Warn of the keys of which many residuals are beyond the bound."""
        shares = {
            entry.key: count / entry.spec.size
            for entry, count in zip(entries, found.beyond, strict=True)
            if count > SHARE * entry.spec.size and entry.key not in self._warned
        }
        if not shares:
            return
        self._warned.update(shares)
        _log.warning(
            "ncclkv: %s of %s: %.0f %% of the residuals are beyond %g, and grow: %s",
            codec.name,
            listed(list(shares)),
            100 * max(shares.values()),
            codec.bound,
            codec.advice(found.root_mean_square()),
        )

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget the launches of keys whose codec has changed."""
        for key in keys:
            self._launches.pop(key, None)
            self._beyond.pop(key, None)
            self._warned.discard(key)
