"""Keys and where their values are: each in a bucket, once the layout is sealed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ncclkv.comm.base import Communicator
from ncclkv.engine.bucket_state import Array, BucketMemory, BucketState, Slot
from ncclkv.errors import UsageError
from ncclkv.kernels.base import Kernels
from ncclkv.table import plan
from ncclkv.table.bucket import place
from ncclkv.table.cost import Sizing
from ncclkv.table.registry import Key, KeySpec, Registry


class Layout:
    """The keys of a store and their memory.

    Attributes
    ----------
    registry : Registry
    states : list of BucketState
        All buckets, in order.
    sizing : Sizing
        How large they are.
    common : bool
        Whether new buckets have weights that the ranks of a node have in common, where they can.
    pending_bytes : int
        Bytes of the values of keys that have no place.

    Parameters
    ----------
    adopt, start : weakref.WeakMethod
        Called with each new bucket: before it is part of the layout, and when it has its values.
    """

    def __init__(
        self,
        comm: Communicator,
        kernels: Kernels,
        sizing: Sizing,
        adopt: Callable[[], Callable[[BucketState], object] | None],
        start: Callable[[], Callable[[BucketState], object] | None],
        *,
        common: bool,
    ) -> None:
        self.registry = Registry()
        self.states: list[BucketState] = []
        self._comm = comm
        self._kernels = kernels
        self.sizing = sizing
        self._adopt = adopt
        self._start = start
        self.common = common
        self.pending_bytes = 0
        self._pending: dict[Key, Array] = {}
        self._slots: dict[Key, Slot] = {}
        self._memory = BucketMemory()

    def add(self, specs: Sequence[KeySpec], values: Sequence[Array]) -> None:
        """Take new keys with their first values, which are kept."""
        self.registry.add(specs)
        self._pending.update((spec.key, value) for spec, value in zip(specs, values, strict=True))
        self.pending_bytes += sum(spec.nbytes for spec in specs)

    @property
    def sealed(self) -> bool:
        """Whether every key has its place."""
        return not self._pending

    def seal(self) -> None:
        """Give all keys that have no place yet one, for good."""
        if self.sealed:
            return
        specs = [spec for spec in self.registry if spec.key in self._pending]
        states = [
            BucketState(bucket, self._comm, common=self.common)
            for bucket in place(specs, self.sizing.bucket_bytes, len(self.states))
        ]
        # Before anything is noted: where this finds no memory all is as it was.
        adopt = self._adopt()
        if adopt is not None:
            for state in states:
                adopt(state)
        for state in states:
            for entry in state.bucket.entries:
                slot = self._slots[entry.key] = Slot(state, entry)
                self._kernels.pack(self._pending[entry.key], slot.weight)
        self._comm.keep_alive(*self._pending.values())
        self._pending.clear()
        self.pending_bytes = 0
        self.states += states
        self._memory.add(states)
        start = self._start()
        if start is not None:
            for state in states:
                start(state)

    def unshare_weights(self) -> None:
        """Give this rank weights of its own, in all buckets, for good."""
        self.common = False
        for state in self.states:
            state.unshare_weights()
        for slot in self._slots.values():
            slot.find_weight()
        self._memory = BucketMemory()
        self._memory.add(self.states)

    def __contains__(self, key: Key) -> bool:
        """Whether a key has its place."""
        return key in self._slots

    def __getitem__(self, key: Key) -> Slot:
        """A key's place; the first call for any key seals the layout."""
        if key not in self._slots:
            self.registry[key]
            self.seal()
        return self._slots[key]

    def pending(self, key: Key) -> Array:
        """The value of a key that has no place."""
        return self._pending[key]

    def replace_pending(self, key: Key, value: Array) -> None:
        """Set the value of a key that has no place."""
        self._pending[key] = value

    def buckets(self, keys: Iterable[Key]) -> list[BucketState]:
        """The buckets of `keys`, each once and in order; keys without a place have none."""
        indices = {self._slots[key].state.bucket.index for key in keys if key in self._slots}
        return [self.states[index] for index in sorted(indices)]

    def bucket_around(self, array: Array) -> tuple[BucketState, bool] | None:
        """The bucket whose memory an array lies in, and whether that is its weights."""
        return self._memory.around(array)

    def check_outs(self, reads: Sequence[tuple[Key, Array]], *, flushed: bool) -> None:
        """Refuse to write over values, and gradients that are pushed and not flushed by reads."""
        done = self.buckets(key for key, _ in reads) if flushed else []
        for key, out in reads:
            around = self.bucket_around(out)
            if around is None:
                continue
            state, in_weights = around
            if in_weights:
                raise UsageError(
                    f"pull of key {key!r}: out is a view of a value in the store; pass an array of "
                    f"your own"
                )
            if (state.pushed or state.in_flight) and state not in done:
                raise UsageError(
                    f"pull of key {key!r}: out lies in a grad_view, in whose bucket pushes are "
                    f"under way; pull its key, or call wait(), first"
                )

    def explain(self, owner: str) -> str:
        """The layout as a table, with what its collectives should take and what they took."""
        buckets = [state.bucket for state in self.states]
        times = [state.in_flight.seconds for state in self.states]
        return plan.explain(buckets, self._pending, owner, self.sizing, times)
