"""From pushed arrays to reduced, updated and readable values.

A push *stages* values into the gradients of their buckets and *commits* them: full buckets are
launched at once, partial ones wait for a reason.  A flush launches what waits and completes what
flies.  Nothing here depends on time or on the order of arrival.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from ncclkv.arrays.memory import is_on_host
from ncclkv.comm.base import Communicator
from ncclkv.engine import copies
from ncclkv.engine.placement import Placement
from ncclkv.engine.state import Array, BucketMemory, BucketState, Slot
from ncclkv.engine.update import Assign, FunctionRule, FusedRule, Rule
from ncclkv.errors import UsageError
from ncclkv.kernels.base import Kernels
from ncclkv.table import plan
from ncclkv.table.bucket import place
from ncclkv.table.registry import Key, KeySpec, Registry


class Engine:
    """The values of one store on one rank.

    Attributes
    ----------
    registry : Registry
    placement : Placement
    rule : Rule
        What becomes of a sum: it replaces the value, or an updater folds it in.
    """

    def __init__(
        self, comm: Communicator, kernels: Kernels, placement: Placement, bucket_bytes: int
    ) -> None:
        self.registry = Registry()
        self.placement = placement
        self.rule: Rule = Assign()
        self._comm = comm
        self._kernels = kernels
        self._bucket_bytes = bucket_bytes
        self._unplaced: dict[Key, Array] = {}
        self._slots: dict[Key, Slot] = {}
        self._states: list[BucketState] = []
        self._memory = BucketMemory()

    # Keys and their places

    def add(self, specs: Sequence[KeySpec], values: Sequence[Array]) -> None:
        """Take new keys with their first values, which the engine keeps."""
        self.registry.add(specs)
        self._unplaced.update((spec.key, value) for spec, value in zip(specs, values, strict=True))

    @property
    def sealed(self) -> bool:
        """Whether every key has its place."""
        return not self._unplaced

    def seal(self) -> None:
        """Give all keys that have no place yet one, for good."""
        if self.sealed:
            return
        specs = [spec for spec in self.registry if spec.key in self._unplaced]
        states = [
            BucketState(bucket, self._comm)
            for bucket in place(specs, self._bucket_bytes, len(self._states))
        ]
        for state in states:
            for entry in state.layout.entries:
                slot = self._slots[entry.key] = Slot(state, entry)
                self._kernels.pack(self._unplaced.pop(entry.key), slot.weight)
        self._states += states
        self._memory.add(states)

    def slot(self, key: Key) -> Slot:
        """A key's place; the first call for any key seals the layout."""
        if key not in self._slots:
            self.registry[key]
            self.seal()
        return self._slots[key]

    def gradient(self, key: Key) -> Array:
        """A key's place in the gradients, for the user to fill."""
        slot = self.slot(key)
        if key in slot.state.pushed:
            raise UsageError(
                f"grad_view of key {key!r}: it was pushed and waits in its bucket, so its gradient "
                f"is the store's; pull it, or call wait({key!r}), first"
            )
        self._complete(slot.state)
        # A view of the caller's own, whose shape may be changed.
        own: Array = slot.gradient_view.view()
        return own

    def replace(self, key: Key, value: Array) -> None:
        """Set a key's value, the same on every rank, and drop what its updater remembers."""
        if key in self._unplaced:
            self._unplaced[key] = value
            return
        slot = self._slots[key]
        self.settle([key])
        self._kernels.pack(value, slot.weight)
        self.rule.reset(slot)

    # Push

    def push(self, values: Mapping[Key, Sequence[Array]], priority: int) -> Exception | None:
        """Stage and commit this rank's values of each key; return what the updater raised."""
        safe = self.safe(values)
        self._make_room(values.keys())
        self.stage(safe)
        return self.commit(dict.fromkeys(values, priority))

    def safe(self, values: Mapping[Key, Sequence[Array]]) -> dict[Key, Sequence[Array]]:
        """The values, with copies of those that a push could overwrite while it reads them.

        That is what lies in a bucket, other than in its own key's gradient.  The first call gives
        keys their places.
        """
        return {key: self._safe(self.slot(key), arrays) for key, arrays in values.items()}

    def _safe(self, slot: Slot, arrays: Sequence[Array]) -> Sequence[Array]:
        """The same for the values of one key."""
        if len(arrays) == 1 and slot.holds(arrays[0]):
            if slot.entry.key in slot.state.pushed or slot.state.flying:
                raise UsageError(
                    f"push of key {slot.entry.key!r}: its grad_view was pushed and not flushed, so "
                    f"it is the store's; pull the key, or wait for it, before filling it again"
                )
            return arrays
        return [
            array if self._memory.bucket(array) is None else self._kernels.copy(array)
            for array in arrays
        ]

    def _make_room(self, keys: Collection[Key]) -> None:
        """Launch what waits in the buckets of `keys` and cannot fly with a new push of them."""
        step = self.rule.step()
        for state in self._buckets(keys):
            if not state.pushed.isdisjoint(keys) or (state.pushed and state.step != step):
                self._launch(state)

    def stage(self, values: Mapping[Key, Sequence[Array]]) -> None:
        """Reduce this rank's values of each key, made safe, into its place in the gradients."""
        alone = []
        for key, arrays in values.items():
            slot = self._slots[key]
            self._complete(slot.state)
            if len(arrays) > 1:
                self._kernels.combine(arrays, slot.gradient, slot.entry.spec.op)
            elif not slot.holds(arrays[0]):
                alone.append((slot, arrays[0]))
        copies.pack(self._kernels, alone)
        for key in values:
            self._slots[key].state.pushed.add(key)

    def commit(self, priorities: Mapping[Key, int]) -> Exception | None:
        """Launch what the staged keys filled; with a function as updater, run it to the end.

        Returns what the updater raised.
        """
        step = self.rule.step()
        buckets: dict[int, int] = {}
        for key, priority in priorities.items():
            index = self._slots[key].state.layout.index
            buckets[index] = max(priority, buckets.get(index, priority))
        at_once = isinstance(self.rule, FunctionRule)
        for index in plan.launch_order(buckets):
            state = self._states[index]
            state.step = step
            if at_once or state.full:
                self._launch(state)
        if isinstance(self.rule, FunctionRule):
            self.flush(priorities)
            if self.placement.updates:
                keys = self.registry.update_order(priorities)
                with self._comm.queue():
                    return self.rule.run([self._slots[key] for key in keys])
        return None

    def _launch(self, state: BucketState) -> None:
        """Start to reduce what was pushed into a bucket."""
        root = self.placement.root
        for launch in plan.launches(state.layout, state.pushed):
            lo, hi = launch.span
            gradients = state.gradients[lo:hi]
            receive, apply = gradients, None
            if self.placement.updates:
                if isinstance(self.rule, Assign):
                    receive = state.weights[lo:hi]
                elif isinstance(self.rule, FusedRule):
                    apply = partial(self.rule.apply, state, state.step, lo)
            work = self._comm.reduce_apply(gradients, receive, state.layout.op, apply, root)
            work.label = launch.label
            state.flying.append(work)
            if root is not None:
                state.fall_behind(lo, hi)
        state.pushed.clear()

    # Flush and read

    def _complete(self, state: BucketState) -> None:
        """Wait for what was launched in a bucket."""
        for work in state.flying:
            work.wait()
        state.flying.clear()

    def flush(self, keys: Iterable[Key] | None = None) -> None:
        """Launch what waits in the buckets of `keys`, or in all, and complete it."""
        states = self._buckets(keys)
        for state in states:
            self._launch(state)
        for state in states:
            self._complete(state)

    def _buckets(self, keys: Iterable[Key] | None) -> list[BucketState]:
        """The buckets of `keys`, or all, each once and in registry order."""
        if keys is None:
            return self._states
        indices = {self._slots[key].state.layout.index for key in keys if key in self._slots}
        return [self._states[index] for index in sorted(indices)]

    def settle(self, keys: Collection[Key] | None = None) -> None:
        """Flush, and give every rank what the root alone has updated, so that all may read."""
        self.flush(keys)
        states = self._buckets(keys)
        for state in states:
            if state.behind is not None and self.placement.root is not None:
                lo, hi = state.behind
                work = self._comm.broadcast(state.weights[lo:hi], self.placement.root)
                work.label = plan.label(state.layout, state.behind)
                state.flying.append(work)
                state.behind = None
        for state in states:
            self._complete(state)

    def check_outs(self, reads: Sequence[tuple[Key, Array]], *, flushed: bool) -> None:
        """Refuse to write over gradients that are pushed and that these reads do not flush."""
        done = self._buckets([key for key, _ in reads]) if flushed else []
        for key, out in reads:
            state = self._memory.bucket(out)
            if state is not None and (state.pushed or state.flying) and state not in done:
                raise UsageError(
                    f"pull of key {key!r}: out lies in a grad_view, in whose bucket pushes are "
                    f"under way; pull its key, or call wait(), first"
                )

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget that `keys` were pushed."""
        for key in keys:
            if key in self._slots:
                self._slots[key].state.pushed.discard(key)

    def copy(self, array: Array) -> Array:
        """A contiguous copy that shares no memory."""
        return self._kernels.copy(array)

    def read(self, reads: Sequence[tuple[Key, Array]]) -> None:
        """Copy keys' values, as of the last flush, into arrays."""
        for state in self._buckets([key for key, _ in reads]):
            self._complete(state)
        if any(is_on_host(out) for _, out in reads):
            self._comm.synchronize()
        if self.sealed:
            copies.unpack(self._kernels, [(self._slots[key], out) for key, out in reads])
            return
        for key, out in reads:
            self._kernels.unpack(self.current(key).reshape(-1), out)

    def current(self, key: Key) -> Array:
        """A key's value as of the last flush, of the key's shape; not to be written."""
        if key in self._unplaced:
            return self._unplaced[key]
        slot = self._slots[key]
        self._complete(slot.state)
        return slot.weight_view

    def explain(self) -> str:
        """The layout as a table."""
        layouts = [state.layout for state in self._states]
        return plan.explain(layouts, self._unplaced, self.placement.owner)

    @property
    def bucket_count(self) -> int:
        """How many buckets have been laid out."""
        return len(self._states)
