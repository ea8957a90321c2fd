"""`Group`: pushes and pulls of a ``with kv.group()`` block, made as one push and one pull."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ncclkv.engine.batch import Pull, Push
from ncclkv.engine.bucket_push import select
from ncclkv.engine.engine import Engine
from ncclkv.engine.storage import Array
from ncclkv.errors import UsageError
from ncclkv.table.registry import Key


class Group:
    """The pushes and pulls of a block so far.

    A single value of a key is packed into its bucket at once.  Several values of a key are copied,
    and combined at the end of the block: 16-bit floats are so rounded once, as in a list.

    Attributes
    ----------
    keys, outs : list
        Keys to pull at the end, and the arrays to write, in the order of the calls.
    observed : list of arrays
        The arrays of other libraries of which these are views, and which observe writes.
    """

    def __init__(self, engine: Engine) -> None:
        engine.flush()
        self.keys: list[Key] = []
        self.outs: list[Array] = []
        self.observed: list[Any] = []
        self._engine = engine
        self._priorities: dict[Key, int] = {}
        self._copies: dict[Key, list[Array]] = {}
        self._step: Any = None

    def add_push(self, push: Push, arrays: Sequence[Array], priority: int) -> None:
        """Add a push; the caller may change its arrays afterwards."""
        engine, copy = self._engine, self._engine.kernels.copy
        repeated = self._priorities.keys() & push.indices.keys()
        values: dict[Key, Sequence[Array]] = {}
        if repeated or push.several:
            values = {key: select(arrays, indices) for key, indices in push.indices.items()}
            direct = {
                key: values.pop(key)
                for key in push.indices
                if key not in repeated and len(values[key]) == 1
            }
            push, arrays = engine.plan_push(direct)
        push.check_free(missing_zeros=engine.missing_zeros)
        copies = {key: [copy(array) for array in several] for key, several in values.items()}
        for key in repeated - self._copies.keys():
            slot = engine.layout[key]
            shape = slot.entry.spec.shape
            copies[key][:0] = [copy(each.reshape(shape)) for each in slot.pushed_arrays()]
        engine.stage(push, arrays)
        # Recorded last: a push that lacks memory adds nothing to the block.
        for key, made in copies.items():
            self._copies.setdefault(key, []).extend(made)
        for key in (*push.indices, *copies):
            self._priorities[key] = max(priority, self._priorities.get(key, priority))

    def add_pull(self, pull: Pull, outs: Sequence[Array]) -> None:
        """Add arrays to write at the end."""
        self.keys += pull.keys
        self.outs += outs
        self.observed += pull.observed

    def reads(self) -> list[tuple[Key, Array]]:
        """Return the arrays to write at the end, in the order of updates of their keys."""
        order = self._engine.layout.registry.update_order(set(self.keys))
        position = {key: index for index, key in enumerate(order)}
        reads = zip(self.keys, self.outs, strict=True)
        return sorted(reads, key=lambda read: position[read[0]])

    @property
    def pushed(self) -> Collection[Key]:
        """The keys that were pushed."""
        return self._priorities

    def check_view(self, key: Key) -> None:
        """Refuse a view of a gradient that the block has.

        Raises
        ------
        UsageError
        """
        if key in self._priorities:
            raise UsageError(
                f"grad_view of key {key!r}: it was pushed in this group, so its gradient is "
                f"the store's; call grad_view after the group's end",
                key=key,
            )

    def prepare(self, unchecked: Sequence[tuple[Key, Array]]) -> None:
        """Pack the copied values into their buckets.

        Raises
        ------
        UsageError
            When an array of `unchecked`, to be written, lies in a bucket whose pushes the end of
            the block does not flush.
        """
        push, arrays = self._engine.plan_push(self._copies)
        self._engine.pack(push, arrays)
        self._engine.keep(arrays)
        self._engine.layout.check_outs(unchecked, flushed=True)
        self._step = self._engine.step_of(self._priorities, packed=True)

    def commit(self) -> None:
        """Launch the pushes of the block as one push; collective."""
        buckets: dict[int, int] = {}
        for key, priority in self._priorities.items():
            index = self._engine.layout[key].state.bucket.index
            buckets[index] = max(priority, buckets.get(index, priority))
        self._engine.launch_full(buckets, self._priorities, self._step)

    def cancel(self) -> None:
        """Drop the pushes of the block."""
        self._engine.drop(self._priorities)
