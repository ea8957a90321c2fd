"""`CapturedUpdates`: the scalars of a captured step, rewritten before each replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from ncclkv.errors import UsageError
from ncclkv.kernels.base import Kernels
from ncclkv.kernels.programs import PROGRAMS
from ncclkv.optimizer.base import Optimizer
from ncclkv.optimizer.scalar_rows import Pushed, RowCache, ScalarRows, UpdateCounts
from ncclkv.table.bucket import Bucket
from ncclkv.typing import Key


class CapturedUpdates:
    """The updates of one captured step.

    A graph fixes addresses and segments at its capture; it reads learning rates, factors and counts
    from memory.  So every key has its own row: keys with equal factors may differ at a replay.

    Parameters
    ----------
    step : callable
        Returns a snapshot of the optimizer for the updates of given keys, as `FusedRule.step` does.
    counted : bool
        Whether the scalars of an update depend on counts.
    counts : UpdateCounts
    parts : sequence of (Bucket, int)
        All buckets that the step may update, each with the element from which updates count.
    store : Kernels
        Kernels of the store, which allocate and write the rows.
    recording : Kernels
        Kernels that the captured updates call.
    write : callable, optional
        Called with the step of a replay, to write what its updates read beside the rows.
    """

    def __init__(
        self,
        step: Callable[[Iterable[Pushed]], Optimizer],
        counted: bool,
        counts: UpdateCounts,
        parts: Sequence[tuple[Bucket, int]],
        store: Kernels,
        recording: Kernels,
        write: Callable[[Optimizer], None] | None = None,
    ) -> None:
        self.kernels = recording
        self._write = write
        self._step = step
        self._counted = counted
        self._counts = counts
        self._store = store
        self._parts = parts
        self._layouts = RowCache(counts, by_key=True)
        columns = len(PROGRAMS[step(()).program].scalars)
        keys = sum(len(bucket.entries) for bucket, _ in parts)
        self._memory = store.zeros(keys * columns, np.dtype(np.float64)).reshape(keys, columns)
        self._rows: dict[int, ScalarRows] = {}
        last = 0
        for bucket, origin in parts:
            first, last = last, last + len(bucket.entries)
            layout = self._layouts.layout(step(()), bucket, origin)
            self._rows[bucket.index] = ScalarRows(layout, self._memory[first:last], copied=True)
        self._launches: list[tuple[Bucket, frozenset[Key]]] = []
        # Every rank counts the updates, and only the ranks that update read the rows.
        self._are_read = False
        self._written: Optimizer | None = None

    def add(self, bucket: Bucket, keys: AbstractSet[Key]) -> None:
        """Record an update of `keys`, which are keys of `bucket`, in the step.

        Raises
        ------
        UsageError
            When the optimizer counts updates and the step updates a key twice.
        """
        before = [earlier.intersection(keys) for each, earlier in self._launches if each is bucket]
        if self._counted and any(before):
            key, optimizer = min(set().union(*before)), type(self._step(())).__name__
            raise UsageError(
                f"capture: key {key!r} is updated twice in the step, and {optimizer} counts "
                f"updates: a replay would give both the same count; capture a step with one update "
                f"of each key"
            )
        self._launches.append((bucket, frozenset(keys)))

    def rows(self, bucket: Bucket) -> ScalarRows:
        """Return the rows that the updates of a bucket read."""
        self._are_read = True
        return self._rows[bucket.index]

    def write(self) -> None:
        """Count the updates of a replay; copy the rows that they read to the graph's memory.

        The copy is in the order of the current stream.
        """
        counts = self._counts
        optimizer = self._step((bucket, keys, frozenset()) for bucket, keys in self._launches)
        for bucket, keys in self._launches:
            counts.add(bucket, keys)
        if self._are_read and (optimizer.counted or optimizer is not self._written):
            rows = [
                self._layouts.layout(optimizer, bucket, origin).rows(optimizer, counts)
                for bucket, origin in self._parts
            ]
            self._store.pack(np.concatenate(rows), self._memory.reshape(-1))
            if self._write is not None:
                self._write(optimizer)
            self._written = optimizer
