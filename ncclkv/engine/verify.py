"""`Verify`: compares the ranks' values at every N-th call, and repairs divergence.

Each rank sends `Checksums` of its values.  The majority is right; of several groups of equal size,
the root's group is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ncclkv.comm.base import Communicator
from ncclkv.engine.batch import Pull
from ncclkv.engine.bucket_state import Array
from ncclkv.engine.checksums import Checksums, Difference, describe, differences
from ncclkv.engine.engine import Engine
from ncclkv.errors import Divergence
from ncclkv.table.registry import Key

_log = logging.getLogger("ncclkv")


class Verify:
    """Compares the values that ranks hold and have pulled, at every N-th call.

    Checksums are compared key by key.  A value that all ranks share, as on one node, has no second
    copy.  The arrays into which ranks have pulled such a value are compared.

    Parameters
    ----------
    engine : Engine
    comm : Communicator
    every : int
        Number of calls per comparison, N.
    root : int
        Rank whose values replace the others'.  Its group is right among groups of equal size.
    repair : bool
        Whether to replace values that differ, in place of raising `Divergence`.

    Attributes
    ----------
    repaired : int
        Number of values replaced so far.
    """

    def __init__(
        self, engine: Engine, comm: Communicator, every: int, root: int, *, repair: bool
    ) -> None:
        self._engine = engine
        self._comm = comm
        self._every = every
        self._root = root
        self._repair = repair
        self._calls = 0
        self.repaired = 0

    def pulled(self, pull: Pull, outs: Sequence[Array]) -> None:
        """Count a pull, and compare its keys if a comparison is due.

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
            indices = [index for part in pull.parts for index in part.indices]
            written = [(pull.keys[index], outs[index]) for index in indices]
            if self._compare(list(dict.fromkeys(pull.keys)), written):
                self._engine.read_values(pull, outs)

    def settled(self, keys: Sequence[Key] | None = None) -> None:
        """Count a call that has settled some keys, or all; compare them if a comparison is due."""
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
                f"{self._root}'s values"
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
        number_of = {key: number for number, key in enumerate(keys)}
        own = [key for key in keys if not self._is_one_copy(key)]
        arrays = [*map(self._engine.current, own), *(out for _, out in written)]
        sums = self._comm.to_host(self._engine.kernels.checksums(arrays))
        held = Checksums.of(len(keys), [number_of[key] for key in own], sums[: len(own)])
        numbers = [number_of[key] for key, _ in written]
        pulled = Checksums.of(len(keys), numbers, sums[len(own) :])
        cast = [number_of[key] for key, out in written if out.dtype != registry[key].dtype]
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
        return [value, *self._engine.rule.states(layout[key]).values()]
