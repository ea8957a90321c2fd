"""`Verify`: compares the ranks' values at every N-th call, and repairs divergence.

Each rank sends `Checksums` of its values.  The majority is right; of several groups of equal size,
the root's group is.

Each rank makes checksums (`ncclkv.kernels.host.checksum`) of its settled values of the call's keys,
and of the arrays that it has just pulled.  Outs of other dtypes than the key's are left out, and so
are arrays of earlier pulls, which the program may change.  Optimizer states are not compared: if
they differ, values differ after the next step.  A captured step is compared at the next ``wait``,
``barrier`` or pull outside of it.  Keys without values (`ncclkv.store.sums`) are compared when
their reduction ends, since the program writes to the sums later.

A repair broadcasts the root's values and optimizer states of the keys that differ, and repeats the
pull.  The state of a function as updater is not repaired.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncclkv.comm.base import Communicator
from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.engine.batch import Pull
from ncclkv.engine.engine import Engine
from ncclkv.engine.storage import Array
from ncclkv.errors import Divergence
from ncclkv.table.registry import Key

_log = logging.getLogger("ncclkv")

_MAX_SHOWN = 4
"""Count of keys, and of ranks, that a text names; further keys and ranks are counted."""


class Checksums(NamedTuple):
    """One rank's checksums of arrays with the values of some keys, a column for each key.

    Attributes
    ----------
    lowest, highest : ndarray of uint64, shape (keys,)
        Extremes of the checksums of a key's arrays.
    comparable : ndarray of bool, shape (keys,)
        Whether a key can be compared with other ranks.
    """

    lowest: NDArray[Any]
    highest: NDArray[Any]
    comparable: NDArray[Any]

    @classmethod
    def of(cls, count: int, indices: Sequence[int], sums: NDArray[Any]) -> Checksums:
        """Return the checksums of `count` keys, from the checksum and key index of each array."""
        lowest = np.full(count, np.iinfo(np.uint64).max, np.uint64)
        made = cls(lowest, np.zeros(count, np.uint64), np.zeros(count, bool))
        np.minimum.at(made.lowest, indices, sums)
        np.maximum.at(made.highest, indices, sums)
        made.comparable[indices] = True
        return made


class Difference(NamedTuple):
    """A key whose value is not equal on all ranks.

    Attributes
    ----------
    key : int or str
    held, pulled : tuple of int
        Ranks in the minority by the value in the store, and by the arrays pulled into.
    """

    key: Key
    held: tuple[int, ...]
    pulled: tuple[int, ...]


def differences(
    held: Sequence[Checksums], pulled: Sequence[Checksums], keys: Sequence[Key], root: int
) -> list[Difference]:
    """Return the keys that differ between ranks, of the keys that all ranks can compare.

    Parameters
    ----------
    held, pulled : sequence of Checksums
        Those of each rank's values in the store, and of the arrays into which it has pulled them.
    keys : sequence of keys
    root : int
    """
    in_store, in_arrays = _minorities(held, root), _minorities(pulled, root)
    return [
        Difference(keys[index], in_store.get(index, ()), in_arrays.get(index, ()))
        for index in sorted({*in_store, *in_arrays})
    ]


def _minorities(all_ranks: Sequence[Checksums], root: int) -> dict[int, tuple[int, ...]]:
    """Return the ranks in the minority of each key that differs, by the key's index."""
    lowest, highest, comparable = map(np.stack, zip(*all_ranks, strict=True))
    differs = ((lowest != lowest[0]) | (highest != highest[0])).any(axis=0) & comparable.all(axis=0)
    found = {}
    for index in np.flatnonzero(differs).tolist():
        extremes = zip(lowest[:, index].tolist(), highest[:, index].tolist(), strict=True)
        found[index] = _minority([*extremes], root)
    return found


def _minority(values: Sequence[Hashable], root: int) -> tuple[int, ...]:
    """Return the ranks outside the largest group of equal values; of equal groups, the root's."""
    sizes = Counter(values)
    largest = max(sizes.values())
    right = values[root]
    if sizes[right] < largest:
        right = next(each for each in values if sizes[each] == largest)
    return tuple(rank for rank, each in enumerate(values) if each != right)


def describe(found: Sequence[Difference], size: int) -> str:
    """Return a text of the keys that differ between `size` ranks, with the ranks of each side."""
    text = "; ".join(_describe_key(each, size) for each in found[:_MAX_SHOWN])
    more = len(found) - _MAX_SHOWN
    return f"{text} and {more} more keys" if more > 0 else text


def _describe_key(difference: Difference, size: int) -> str:
    """Return the text of one key."""
    key, held, pulled = difference
    if held == pulled:
        return f"of key {key!r} {_sides(held, size)} (held and pulled)"
    texts = [
        f"{_sides(ranks, size)} ({name})"
        for ranks, name in ((held, "held"), (pulled, "pulled"))
        if ranks
    ]
    return f"of key {key!r} {', and '.join(texts)}"


def _sides(minority: tuple[int, ...], size: int) -> str:
    """Return the text of the ranks in the minority and of the others."""
    others = [rank for rank in range(size) if rank not in minority]
    has = "has" if len(minority) == 1 else "have"
    return (
        f"{format_ranks(minority, _MAX_SHOWN)} {has} other bits than "
        f"{format_ranks(others, _MAX_SHOWN)}"
    )


class Verify:
    """Compares the values that ranks hold and have pulled, at every N-th call.

    Checksums are compared key by key.  A value that all ranks share, as on one node, has no second
    copy.  The arrays into which ranks have pulled such a value are compared.

    Parameters
    ----------
    engine : Engine
    comm : Communicator
    every : int
        Count of calls per comparison, N.
    root : int
        Rank whose values replace the others'.  Its group is right among groups of equal size.
    repair : bool
        Whether to replace values that differ, in place of raising `Divergence`.

    Attributes
    ----------
    repaired : int
        Count of values replaced so far.
    """

    def __init__(
        self, engine: Engine, comm: Communicator, every: int, root: int, *, repair: bool
    ) -> None:
        self._engine = engine
        self._comm = comm
        self._every = every
        self._root = root
        self._repair = repair
        self._calls = self._skipped = 0
        self.repaired = 0

    def pulled(self, pull: Pull, outs: Sequence[Array]) -> None:
        """Count a pull, and compare its keys if a comparison is due; collective.

        Parameters
        ----------
        pull : Pull
        outs : sequence of ndarray
            The arrays that have been written.

        Raises
        ------
        Divergence
            On every rank, when ranks differ and values are not repaired.  Its cause is the
            pending exception of an updater on this rank, if there is one.
        """
        if pull.keys and self._is_due():
            # An array given for several keys holds the value of the last key only.
            indices = [index for each in pull.by_bucket for index in each.indices]
            written = [(pull.keys[index], outs[index]) for index in indices]
            if self._compare(list(dict.fromkeys(pull.keys)), written):
                self._engine.read_values(pull, outs)

    def settled(self, keys: Sequence[Key] | None = None) -> None:
        """Count a call that has settled keys, or all; compare them if that is due; collective."""
        skipped, self._skipped = self._skipped, self._engine.skipped
        if not self._engine.layout.has_values and (keys is None or skipped != self._skipped):
            return  # the program may have written to the places of the sums
        if self._is_due():
            registered = [spec.key for spec in self._engine.layout.registry]
            self._compare(registered if keys is None else list(dict.fromkeys(keys)), [])

    def _is_due(self) -> bool:
        """Count a call that all ranks execute; return whether to compare after it."""
        if self._engine.uneven or self._engine.recorder is not None:
            return False
        self._calls += 1
        return self._calls % self._every == 0

    def _compare(
        self, keys: Sequence[Key], written: Sequence[tuple[Key, Array]]
    ) -> list[Difference]:
        """Return the differences between ranks, after their repair."""
        mine = self._checksums(keys, written)
        received = self._comm.control.allgather([*map(tuple, mine)], "checksums of values")
        held, pulled = ([Checksums(*of_rank[kind]) for of_rank in received] for kind in range(2))
        found = differences(held, pulled, keys, self._root)
        if not found:
            return found
        flushes = "1 flush" if self._calls == 1 else f"{self._calls} flushes"
        text = (
            f"rank {self._comm.rank} of {self._comm.size}: after {flushes} values differ: "
            f"{describe(found, self._comm.size)}; "
        )
        if not self._repair:
            raise Divergence(
                f"{text}check for a rank that modifies its values in place, or an updater that "
                f"depends on the rank; or let create(..., repair=True) give all ranks rank "
                f"{self._root}'s values",
                key=found[0].key if len(found) == 1 else None,
                ranks={rank for each in found for rank in (*each.held, *each.pulled)},
            ) from self._engine.updates.pop_error()
        self._replace([each.key for each in found if each.held])
        self.repaired += len(found)
        if self._comm.rank == 0:
            rule = self._engine.rule
            rest = f", but not the state of its updater {rule.name}" if rule.by_key else ""
            _log.warning("%sall ranks now have rank %d's values%s", text, self._root, rest)
        return found

    def _checksums(
        self, keys: Sequence[Key], written: Sequence[tuple[Key, Array]]
    ) -> tuple[Checksums, Checksums]:
        """Return this rank's checksums of keys, and of the arrays written with their values."""
        registry = self._engine.layout.registry
        index_of = {key: index for index, key in enumerate(keys)}
        own = [key for key in keys if not self._is_one_copy(key)]
        arrays = [*map(self._engine.current, own), *(out for _, out in written)]
        sums = self._comm.to_host(self._engine.kernels.checksums(arrays))
        held = Checksums.of(len(keys), [index_of[key] for key in own], sums[: len(own)])
        indices = [index_of[key] for key, _ in written]
        pulled = Checksums.of(len(keys), indices, sums[len(own) :])
        cast = [index_of[key] for key, out in written if out.dtype != registry[key].dtype]
        pulled.comparable[cast] = False
        return held, pulled

    def _is_one_copy(self, key: Key) -> bool:
        """Return whether all ranks share one copy of a value."""
        layout = self._engine.layout
        one_node = self._comm.local_size == self._comm.size
        return one_node and key in layout and layout[key].state.node_shared

    def _replace(self, keys: Sequence[Key]) -> None:
        """Replace the values and optimizer states of keys by the root's."""
        works = []
        for key in keys:
            for array in self._replicas(key):
                work = self._comm.broadcast(array, self._root)
                work.label = f"the repair of key {key!r}"
                works.append(work)
        for work in works:
            work.wait()

    def _replicas(self, key: Key) -> list[Array]:
        """Return all arrays of a key that each rank holds, flat."""
        layout = self._engine.layout
        _, value = layout.source(key)
        if key not in layout or not self._engine.placement.replicated:
            return [value]
        states = self._engine.rule_of(layout[key]).states(layout[key])
        return [value, *states.values()]
