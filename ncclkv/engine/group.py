"""`Group`: pushes and pulls of a ``with kv.group()`` block, made as one push and one pull."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ncclkv.engine.batch import Pull, Push, select
from ncclkv.engine.bucket_state import Array
from ncclkv.engine.engine import Engine
from ncclkv.table.registry import Key


class Group:
    """The pushes and pulls of a block so far.

    A single value of a key is packed into its bucket at once.  Several values of a key are kept and
    combined at the end of the block, so that 16-bit floats are rounded once, as in a list.

    Attributes
    ----------
    keys, outs : list
        Keys to pull at the end, and the arrays to write, in the order of the calls.
    tensors : list of torch.Tensor
        The tensors of which these arrays are views.
    """

    def __init__(self, engine: Engine) -> None:
        engine.flush()
        self.keys: list[Key] = []
        self.outs: list[Array] = []
        self.tensors: list[Any] = []
        self._engine = engine
        self._priorities: dict[Key, int] = {}
        self._kept: dict[Key, list[Array]] = {}
        self._step: Any = None

    def add_push(self, batch: Push, row: Sequence[Array], priority: int) -> None:
        """Add a push; the caller may change its arrays afterwards."""
        kept: dict[Key, Sequence[Array]] = {}
        again = self._priorities.keys() & batch.indices.keys()
        if again or batch.several:
            values = {key: select(row, numbers) for key, numbers in batch.indices.items()}
            kept = {key: of for key, of in values.items() if key in again or len(of) > 1}
            direct = {key: of for key, of in values.items() if key not in kept}
            batch, row = self._engine.plan_push(direct)
        engine, copy = self._engine, self._engine.kernels.copy
        engine.check_free(batch)
        copies = {key: [copy(array) for array in arrays] for key, arrays in kept.items()}
        for key in again - self._kept.keys():
            copies[key].insert(0, copy(engine.layout[key].gradient_view))
        try:
            engine.pack(batch, row)
        except BaseException:
            engine.drop(batch.indices)
            raise
        # Last, so that a push that lacks memory adds nothing to the block.
        for key, made in copies.items():
            self._kept.setdefault(key, []).extend(made)
        for key in (*batch.indices, *kept):
            self._priorities[key] = max(priority, self._priorities.get(key, priority))

    def add_pull(self, pull: Pull, outs: Sequence[Array]) -> None:
        """Add arrays to write at the end."""
        self.keys += pull.keys
        self.outs += outs
        self.tensors += pull.tensors

    def __contains__(self, key: Key) -> bool:
        """Return whether a key was pushed in the block."""
        return key in self._priorities

    def reads(self) -> list[tuple[Key, Array]]:
        """Return the arrays to write at the end, in the order of one pull of them all."""
        order = self._engine.layout.registry.update_order(set(self.keys))
        position = {key: number for number, key in enumerate(order)}
        reads = zip(self.keys, self.outs, strict=True)
        return sorted(reads, key=lambda read: position[read[0]])

    @property
    def pushed(self) -> Collection[Key]:
        """The keys that were pushed."""
        return self._priorities

    def prepare(self, unchecked: Sequence[tuple[Key, Array]]) -> None:
        """Pack the kept values into their buckets.

        Raises
        ------
        UsageError
            When one of the arrays `unchecked` lies in a gradient that the block leaves in its
            bucket.
        """
        batch, row = self._engine.plan_push(self._kept)
        self._engine.pack(batch, row)
        self._engine.keep(row)
        self._engine.layout.check_outs(unchecked, flushed=True)
        self._step = self._engine.rule.step()

    def commit(self) -> None:
        """Launch the pushes of the block as one push."""
        buckets: dict[int, int] = {}
        for key, priority in self._priorities.items():
            index = self._engine.layout[key].state.bucket.index
            buckets[index] = max(priority, buckets.get(index, priority))
        self._engine.launch_full(buckets, self._priorities, self._step)

    def cancel(self) -> None:
        """Drop the pushes of the block."""
        self._engine.drop(self._priorities)
