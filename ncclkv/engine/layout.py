"""`Layout`: the keys of a store and the memory of each, fixed once the layout is sealed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ncclkv.comm.base import Communicator
from ncclkv.comm.types import To
from ncclkv.engine.bucket_state import Array, BucketMemory, BucketState, Slot
from ncclkv.engine.reduction import Reduction
from ncclkv.errors import NotSupported, UsageError
from ncclkv.table.bucket import Bucket, make_buckets
from ncclkv.table.cost import Sizing
from ncclkv.table.registry import DENSE, Key, KeySpec, Registry


class Layout:
    """The keys of a store and their memory.

    Parameters
    ----------
    comm : Communicator
    sizing : Sizing
    plan : callable
        Returns the destinations of sums of the buckets, those of earlier buckets as before.
    allocate : callable
        Called with each new bucket once its weights are set, before the bucket joins the layout.
    reduction : Reduction
        Makes the sums of every bucket.
    share_weights : bool
    multiple : int
        The length of a bucket is a multiple of this number of elements.

    Attributes
    ----------
    registry : Registry
    states : list of BucketState
        All buckets, in order.
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
    """

    def __init__(
        self,
        comm: Communicator,
        sizing: Sizing,
        plan: Callable[[Sequence[Bucket]], Sequence[To]],
        allocate: Callable[[BucketState], object],
        reduction: Reduction,
        *,
        share_weights: bool,
        multiple: int = 1,
    ) -> None:
        self.registry = Registry()
        self.states: list[BucketState] = []
        self.sizing = sizing
        self.share_weights = share_weights
        self.multiple = multiple
        self.has_values = True
        self.pending: dict[Key, Array] = {}
        self.pending_bytes = 0
        self._comm = comm
        self._plan = plan
        self._allocate = allocate
        self._reduction = reduction
        self._slots: dict[Key, Slot] = {}
        self._memory = BucketMemory(())

    def add(self, specs: Sequence[KeySpec], values: Sequence[Array]) -> None:
        """Register new keys, and keep their first values until the layout is sealed."""
        self.pending.update((spec.key, value) for spec, value in zip(specs, values, strict=True))
        self.registry.add(specs)
        self.pending_bytes += sum(spec.nbytes for spec in specs)
        if not self.has_values:
            self.seal()

    @property
    def sealed(self) -> bool:
        """Return whether every key has a slot."""
        return not self.pending

    def seal(self) -> None:
        """Give every pending key a slot in a new bucket; slots never move afterwards."""
        if self.sealed:
            return
        every = self.buckets_with(())
        buckets, plan = every[len(self.states) :], self._plan(every)[len(self.states) :]
        # Nothing is recorded before all is allocated: a MemoryError leaves the layout unchanged.
        with self._comm.rolling_back_node_shared():
            states = [self._state(bucket, to) for bucket, to in zip(buckets, plan, strict=True)]
            slots = {
                entry.key: Slot(state, entry) for state in states for entry in state.bucket.entries
            }
            memory = BucketMemory([*self.states, *states])
            for key, slot in slots.items() if self.has_values else ():
                self._comm.kernels.pack(self.pending[key], slot.weight)
            for state in states:
                self._allocate(state)
            self._comm.keep_alive(*self.pending.values())
        self._memory = memory
        self.states += states
        self._slots.update(slots)
        self.pending.clear()
        self.pending_bytes = 0

    def buckets_of(self, specs: Iterable[KeySpec]) -> list[Bucket]:
        """Return the buckets that keys without slots, in registry order, would get now."""
        return make_buckets(specs, self.sizing.bucket_bytes, len(self.states), self.multiple)

    def buckets_with(self, specs: Iterable[KeySpec]) -> list[Bucket]:
        """Return all buckets as they will be, if new keys are added and the layout is sealed."""
        pending = [spec for spec in self.registry if spec.key in self.pending]
        return [*(state.bucket for state in self.states), *self.buckets_of([*pending, *specs])]

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

    def _state(self, bucket: Bucket, to: To) -> BucketState:
        """Return the memory of a new bucket, by the storage of its keys."""
        if bucket.storage != DENSE:
            raise NotSupported(
                f"storage {bucket.storage!r} of keys is not in this version; use {DENSE!r}"
            )
        return BucketState(
            bucket,
            self._comm,
            self._reduction,
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

    def __getitem__(self, key: Key) -> Slot:
        """Return a key's slot; the first call for a pending key seals the layout."""
        if key not in self._slots:
            self.registry[key]
            self.seal()
        return self._slots[key]

    def source(self, key: Key) -> tuple[BucketState | None, Array]:
        """Return a key's bucket and its flat value; the bucket is None until the key has a slot."""
        if key in self.pending:
            return None, self.pending[key].reshape(-1)
        slot = self[key]
        return slot.state, slot.weight

    def buckets(self, keys: Iterable[Key]) -> list[BucketState]:
        """Return the buckets of `keys`, each once, in order; pending keys are left out."""
        indices = {self._slots[key].state.bucket.index for key in keys if key in self._slots}
        return [self.states[index] for index in sorted(indices)]

    def bucket_of(self, array: Array) -> tuple[BucketState, bool] | None:
        """Return the bucket that an array lies in, and whether in its weights; else None."""
        return self._memory.find(array)

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
        done = self.buckets(key for key, _ in reads) if flushed else []
        for key, out in reads:
            found = self.bucket_of(out)
            if found is None:
                continue
            state, in_weights = found
            if in_weights:
                raise UsageError(
                    f"pull of key {key!r}: out is a view of a value in the store; pass another "
                    f"array"
                )
            if (state.pushed or state.in_flight.works) and state not in done:
                raise UsageError(
                    f"pull of key {key!r}: out lies in a grad_view, whose bucket has pushes that "
                    f"are not flushed or not complete; pull its key, or call wait(), first"
                )
