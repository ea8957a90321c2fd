"""`Layout`: the keys of a store and the memory of each, given once the layout is sealed.

The layout depends on the registry, the bucket size and the moments when it was sealed.  ``value``
and ``grad_view`` are local, and seal it too.  At the next ``init`` the ranks exchange which of them
have sealed it, and the others then seal it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ncclkv.comm.base import Communicator
from ncclkv.comm.destinations import To
from ncclkv.engine.bucket_memory import BucketMemory
from ncclkv.engine.reductions import Reductions
from ncclkv.engine.storage import Array, StoredBucket, StoredKey
from ncclkv.engine.storage_table import STORAGES, storage_of
from ncclkv.errors import UsageError
from ncclkv.table.bucket import Bucket, make_buckets
from ncclkv.table.cost import Sizing
from ncclkv.table.registry import Key, KeySpec, Registry


class Layout:
    """The keys of a store and their memory.

    Parameters
    ----------
    comm : Communicator
    sizing : Sizing
    plan : callable
        Returns the destinations of sums of new buckets, and adds their bytes to `loads`.
    allocate : callable
        Called with each new bucket once its weights are set, before the bucket joins the layout.
    reductions : Reductions
        Chooses what makes the sums of a bucket.
    share_weights : bool
    multiple : int
        The length of a bucket is a multiple of so many elements.

    Attributes
    ----------
    registry : Registry
    states : list of StoredBucket
        All buckets, in order.
    reductions : Reductions
        As the parameter.
    sizing : Sizing
        Size of the buckets.
    share_weights : bool
        Whether the ranks of a node with shared memory share the weights of new buckets.
    has_values : bool
        Whether keys have values; else new keys have a slot at once, for their sums alone.
    pending : dict of ndarray
        The values of keys that have no slot yet.
    pending_bytes : int
        Bytes of these values.
    unplanned : int
        Count of keys in the store, if any were added after others had buckets, and all keys were
        not pushed together since; else 0.  Equal on all ranks outside local verbs.
    merges : int
        Count of times that keys have moved to other buckets.
    loads : list of int
        Bytes of the keys in buckets that each rank updates, if the rule updates whole keys.
    """

    def __init__(
        self,
        comm: Communicator,
        sizing: Sizing,
        plan: Callable[[Sequence[Bucket], list[int]], Sequence[To]],
        allocate: Callable[[StoredBucket], object],
        reductions: Reductions,
        *,
        share_weights: bool,
        multiple: int = 1,
    ) -> None:
        self.registry = Registry()
        self.states: list[StoredBucket] = []
        self.sizing = sizing
        self.share_weights = share_weights
        self.multiple = multiple
        self.has_values = True
        self.pending: dict[Key, Array] = {}
        self.pending_bytes = 0
        self.unplanned = self.merges = 0
        self.loads = [0] * comm.size
        self._comm = comm
        self._plan = plan
        self._allocate = allocate
        self.reductions = reductions
        self._slots: dict[Key, StoredKey] = {}
        self._by_index: dict[int, StoredBucket] = {}
        self._next = 0
        self._memory = BucketMemory(())

    def add(self, specs: Sequence[KeySpec], values: Sequence[Array]) -> None:
        """Register new keys, and keep their first values until the layout is sealed."""
        self.pending.update((spec.key, value) for spec, value in zip(specs, values, strict=True))
        self.registry.add(specs)
        if self.states:
            self.unplanned = len(self.registry)
        self.pending_bytes += sum(spec.nbytes for spec in specs)
        if not self.has_values:
            self.seal()

    @property
    def sealed(self) -> bool:
        """Return whether every key has a slot."""
        return not self.pending

    def seal(self) -> None:
        """Give every pending key a slot in a new bucket; write weights that a node may share.

        Slots move in a merge alone.
        """
        if self.sealed:
            return
        # New buckets alone are planned: keys may be added one by one.
        buckets, loads = self.buckets_of(self._waiting()), [*self.loads]
        plan = self._plan(buckets, loads)
        slots = self._allocated(buckets, plan, self.pending)
        self._memory.add(self._record(slots))
        self.loads = loads
        self.pending.clear()
        self.pending_bytes = 0

    def _allocated(
        self, buckets: Sequence[Bucket], plan: Sequence[To], values: Mapping[Key, Array]
    ) -> dict[Key, StoredKey]:
        """Return the slots of new buckets, which have these values and their optimizer states.

        Nothing is recorded before all is allocated: a MemoryError leaves the layout unchanged.
        """
        with self._comm.rolling_back_node_shared():
            states = [self._state(bucket, to) for bucket, to in zip(buckets, plan, strict=True)]
            slots = {
                entry.key: STORAGES[state.bucket.storage].key(state, entry)
                for state in states
                for entry in state.bucket.entries
            }
            for key, slot in slots.items() if self.has_values else ():
                self._comm.kernels.pack(values[key], slot.weight)
            for state in states:
                self._allocate(state)
            self._comm.keep_alive(*values.values())
        return slots

    def _record(self, slots: Mapping[Key, StoredKey]) -> Iterable[StoredBucket]:
        """Add the buckets of new slots, but for the index of their memory; return them."""
        states = {slot.state.bucket.index: slot.state for slot in slots.values()}
        self.states += states.values()
        self._by_index.update(states)
        self._next += len(states)
        self._slots.update(slots)
        return states.values()

    def replace_buckets(
        self, old: Sequence[StoredBucket], buckets: Sequence[Bucket]
    ) -> dict[Key, StoredKey]:
        """Move all keys of buckets to new buckets, which a node may share; return their slots."""
        moved = [entry.key for state in old for entry in state.bucket.entries]
        values = {key: self._slots[key].weight for key in moved}
        slots = self._allocated(buckets, self._plan(buckets, [*self.loads]), values)
        for state in old:
            del self._by_index[state.bucket.index]
        self.states[:] = self._by_index.values()
        self._record(slots)
        self._memory = BucketMemory(self.states)
        self.merges += 1
        return slots

    def bucket_at(self, index: int) -> StoredBucket:
        """Return the bucket of an index."""
        return self._by_index[index]

    def buckets_of(self, specs: Iterable[KeySpec]) -> list[Bucket]:
        """Return the buckets that keys without slots, in registry order, would get now."""
        return make_buckets(specs, self.sizing.bucket_bytes, self._next, self.multiple)

    def buckets_with(self, specs: Iterable[KeySpec]) -> list[Bucket]:
        """Return all buckets as they will be, if new keys are added and the layout is sealed."""
        new = self.buckets_of([*self._waiting(), *specs])
        return [*(state.bucket for state in self.states), *new]

    def _waiting(self) -> list[KeySpec]:
        """Return the keys that have no slot yet, in registry order."""
        return [self.registry[key] for key in self.pending]

    def seal_on_all(self, verb: str, sealed: Sequence[bool]) -> None:
        """Seal the layout if it is sealed on any rank; collective.

        The slots of later keys depend on the keys that have slots already.

        Parameters
        ----------
        verb : str
        sealed : sequence of bool
            Whether the layout is sealed, on each rank.
        """
        if any(sealed) and not all(sealed):
            self.seal()
            # Ranks share memory: no first value may be written after the values written next.
            self._comm.control.barrier(verb)

    def _state(self, bucket: Bucket, to: To) -> StoredBucket:
        """Return the memory of a new bucket, by the storage of its keys."""
        return storage_of(bucket.storage).bucket(
            bucket,
            self._comm,
            self.reductions,
            to=to,
            share_weights=self.share_weights,
            has_values=self.has_values,
        )

    def unshare_weights(self) -> None:
        """Move the weights to this rank's own memory, in present and future buckets."""
        self.share_weights = False
        for state in self.states:
            state.unshare_weights()
        for slot in self._slots.values():
            slot.find_weight()
        self._memory = BucketMemory(self.states)

    def __contains__(self, key: Key) -> bool:
        """Return whether a key has a slot."""
        return key in self._slots

    def __getitem__(self, key: Key) -> StoredKey:
        """Return a key's slot; the first call for a pending key seals the layout."""
        if key not in self._slots:
            self.registry[key]
            self.seal()
        return self._slots[key]

    def source(self, key: Key) -> tuple[StoredBucket | None, Array]:
        """Return a key's bucket and its flat value; the bucket is None until the key has a slot."""
        if key in self.pending:
            return None, self.pending[key].reshape(-1)
        slot = self[key]
        return slot.state, slot.weight

    def buckets(self, keys: Iterable[Key]) -> list[StoredBucket]:
        """Return the buckets of `keys`, each once, in order; pending keys are left out."""
        indices = {self._slots[key].state.bucket.index for key in keys if key in self._slots}
        return [self._by_index[index] for index in sorted(indices)]

    def bucket_of(self, array: Array) -> tuple[StoredBucket, bool] | None:
        """Return the bucket that an array lies in, and whether in its weights; else None."""
        return self._memory.find(array)

    def buckets_of_all(self, arrays: Sequence[Array]) -> list[tuple[StoredBucket, bool] | None]:
        """Return the result of `bucket_of` for each array."""
        return self._memory.find_all(arrays)

    def lie_outside(self, begins: NDArray[np.intp]) -> bool:
        """Return whether no address lies in a bucket."""
        return not self._memory.holds_any(begins)

    def check_outs(self, reads: Sequence[tuple[Key, Array]], *, flushed: bool) -> None:
        """Refuse outs that lie in values of the store, or in gradients that are in use.

        Parameters
        ----------
        reads : sequence of (key, ndarray)
        flushed : bool
            Whether the pull flushes the buckets of its keys before it writes.

        Raises
        ------
        UsageError
        """
        within = self.buckets_of_all([out for _, out in reads])
        if not any(within):
            return
        done = self.buckets(key for key, _ in reads) if flushed else []
        for (key, _), found in zip(reads, within, strict=True):
            if found is None:
                continue
            state, in_weights = found
            if in_weights:
                raise UsageError(
                    f"pull of key {key!r}: out is a view of a value in the store; pass another "
                    f"array",
                    key=key,
                )
            if (state.waiting or state.works) and state not in done:
                raise UsageError(
                    f"pull of key {key!r}: out lies in a grad_view, whose bucket has pushes that "
                    f"are not flushed or not complete; pull its key, or call wait(), first",
                    key=key,
                )
