"""From pushed arrays to reduced, updated and readable values.

A push *stages* values into the gradients of their buckets and *commits* them: full buckets are
launched at once, partial ones wait for a reason.  A flush launches what waits and completes what
flies.  Nothing here depends on time or on the order of arrival.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from ncclkv.comm.base import Communicator, DoneWork
from ncclkv.engine.batch import Pull, Push, chosen, pull_of, push_of
from ncclkv.engine.capture import Recording
from ncclkv.engine.placement import Placement
from ncclkv.engine.places import Places
from ncclkv.engine.state import Array, BucketState
from ncclkv.engine.update import Assign, FunctionRule, FusedRule, Rule
from ncclkv.errors import UsageError
from ncclkv.kernels.base import Kernels
from ncclkv.table import plan
from ncclkv.table.cost import Sizing
from ncclkv.table.registry import Key


class Engine:
    """The values of one store on one rank.

    Attributes
    ----------
    places : Places
        The keys and where their values are.
    placement : Placement
    rule : Rule
        What becomes of a sum: it replaces the value, or an updater folds it in.
    kernels : Kernels
        The arithmetic of the memory that values are in.
    recording : Recording or None
        What the calls are part of, when they are captured and not done.
    """

    def __init__(
        self, comm: Communicator, kernels: Kernels, placement: Placement, sizing: Sizing
    ) -> None:
        # Weak, or a store that is dropped would keep its memory until the garbage is collected.
        adopt = weakref.WeakMethod(self._adopt)
        self.places = Places(comm, kernels, sizing, adopt, common=placement.root is None)
        self.placement = placement
        self.rule: Rule = Assign()
        self._comm = comm
        self.kernels = kernels
        self.recording: Recording | None = None

    # Keys

    def gradient(self, key: Key) -> Array:
        """A key's place in the gradients, for the user to fill."""
        slot = self.places[key]
        if key in slot.state.pushed:
            raise UsageError(
                f"grad_view of key {key!r}: it was pushed and waits in its bucket, so its gradient "
                f"is the store's; pull it, or call wait({key!r}), first"
            )
        self._take_up(slot.state)
        # A view of the caller's own, whose shape may be changed.
        own: Array = slot.gradient_view.view()
        return own

    def replace(self, key: Key, value: Array) -> None:
        """Set a key's value, the same on every rank, and drop what its updater remembers."""
        if key not in self.places:
            self.places.replace_unplaced(key, value)
            return
        slot = self.places[key]
        self.settle([slot.state])
        self.kernels.pack(value, slot.weight)
        self.rule.reset(slot)

    def change(self, rule: Rule) -> None:
        """Apply what was pushed under the old rule, then follow another; all ranks together.

        They must have sealed the same keys.
        """
        self.flush()
        if rule.source is not self.rule.source:
            self.rule.dispose()
        self.rule = rule
        if isinstance(rule, FunctionRule):
            self.places.part()
        for state in self.places.states:
            state.launched = False
            self._adopt(state)

    def _adopt(self, state: BucketState) -> None:
        """Let the rule get what it needs for a bucket."""
        if self.placement.updates:
            self.rule.adopt(state)

    # Push

    def batch(self, values: Mapping[Key, Sequence[Array]]) -> tuple[Push, list[Array]]:
        """Sort this rank's values of each key; return them in a row, too.

        What a push could overwrite while it reads it is copied: that is what lies in a bucket,
        other than in its own key's gradient.  The first call gives keys their places.
        """
        return push_of(values, self.places.__getitem__, self._safe)

    def _safe(self, array: Array) -> Array:
        """The array, or a copy when it lies in a bucket."""
        return array if self.places.bucket_around(array) is None else self.kernels.copy(array)

    def ready(self, batch: Push) -> Any:
        """Refuse what cannot be pushed now; the step that `push` is to make of it."""
        self.admit(batch)
        return self.rule.step()

    def push(self, batch: Push, row: Sequence[Array], priority: int, step: Any) -> Exception | None:
        """Stage and commit a batch that is ready; return what the updater raised."""
        alone = self._comm.size == 1 and self.recording is None
        if alone and batch.whole and isinstance(self.rule, Assign):
            self._assign(batch, row)
            return None
        self._make_room(batch, step)
        self.stage(batch, row)
        priorities = {load.state.layout.index: priority for load in batch.loads}
        return self.commit(priorities, batch.numbers, step)

    def admit(self, batch: Push) -> None:
        """Refuse gradients that are the store's."""
        for load in batch.loads:
            for slot in load.held:
                if slot.entry.key in load.state.pushed or load.state.flying:
                    raise UsageError(
                        f"push of key {slot.entry.key!r}: its grad_view was pushed and not "
                        f"flushed, so it is the store's; pull the key, or wait for it, before "
                        f"filling it again"
                    )

    def _make_room(self, batch: Push, step: Any) -> None:
        """Launch what waits in the buckets of a batch and cannot fly with it."""
        for load in batch.loads:
            state = load.state
            if not state.pushed.isdisjoint(load.keys) or (state.pushed and state.step != step):
                self._launch(state)

    def stage(self, batch: Push, row: Sequence[Array]) -> None:
        """Reduce this rank's values of each key into its place in the gradients."""
        for load in batch.loads:
            self._take_up(load.state)
            load.copy(row, load.gradients, self.kernels)
            load.state.pushed |= load.keys

    def _assign(self, batch: Push, row: Sequence[Array]) -> None:
        """Reduce the values of whole buckets into the weights: of one rank, that is their sum."""
        for load in batch.loads:
            self._launch(load.state)
            load.state.flying.complete()
            load.copy(row, load.weights, self.kernels)
            load.state.flying.add(DoneWork())
            load.state.launched = True

    def commit(
        self, priorities: Mapping[int, int], keys: Collection[Key], step: Any
    ) -> Exception | None:
        """Launch the buckets that the staged keys filled; with a function as updater, run it.

        Parameters
        ----------
        priorities : mapping of int to int
            Of the buckets, by their numbers.
        keys : collection of keys
        step : Any
            Of `ready`.

        Returns
        -------
        Exception or None
            What the updater raised.
        """
        at_once = isinstance(self.rule, FunctionRule)
        for index in plan.launch_order(priorities):
            state = self.places.states[index]
            state.step = step
            if at_once or state.full:
                self._launch(state)
        if isinstance(self.rule, FunctionRule):
            self.flush([self.places.states[index] for index in sorted(priorities)])
            if self.placement.updates:
                slots = [self.places[key] for key in self.places.registry.update_order(keys)]
                with self._comm.queue():
                    return self.rule.run(slots)
        return None

    def _launch(self, state: BucketState) -> None:
        """Start to reduce what was pushed into a bucket."""
        if not state.pushed:
            return
        if self.recording is not None:
            self.recording.check_launch(state)
        state.launched = True
        since = perf_counter() if state.full else None
        root = self.placement.root
        for span in plan.spans(state.layout, state.pushed):
            lo, hi, gradients, weights, label = state.stretch(span)
            receive, apply = gradients, None
            if self.placement.updates:
                if isinstance(self.rule, Assign):
                    receive = weights
                elif isinstance(self.rule, FusedRule):
                    apply = partial(self.rule.apply, state, state.step, lo)
            work = self._comm.reduce_apply(
                gradients, receive, state.layout.op, apply, root, divided=state.common
            )
            work.label = label
            state.flying.add(work, since)
            if root is not None:
                state.fall_behind(lo, hi)
        state.pushed.clear()

    # Flush and read

    def _take_up(self, state: BucketState) -> None:
        """Wait for what was launched in a bucket that a call is about to write or to read."""
        if self.recording is not None:
            self.recording.include(state)
        state.flying.complete()

    def flush(self, states: Sequence[BucketState] | None = None) -> None:
        """Launch what waits in some buckets, or in all, and complete it."""
        states = self.places.states if states is None else states
        for state in states:
            if state.pushed:
                self._launch(state)
        for state in states:
            if state.flying:
                state.flying.complete()

    def settle(self, states: Sequence[BucketState] | None = None) -> None:
        """Flush, and give every rank what the root alone has updated, so that all may read."""
        states = self.places.states if states is None else states
        self.flush(states)
        for state in states:
            if state.behind is not None and self.placement.root is not None:
                behind = state.stretch(state.behind)
                work = self._comm.broadcast(behind.weights, self.placement.root)
                work.label = behind.label
                state.flying.add(work)
                state.behind = None
        for state in states:
            if state.flying:
                state.flying.complete()

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget that `keys` were pushed."""
        for key in keys:
            if key in self.places:
                self.places[key].state.pushed.discard(key)

    def keep(self, arrays: Sequence[Array]) -> None:
        """Let arrays live until what reads them now is over."""
        self._comm.keep(*arrays)

    def reading(self, reads: Sequence[tuple[Key, Array]]) -> tuple[Pull, list[Array]]:
        """Sort what is to be read; return the arrays to be written in a row, too.

        One that stands for several keys gets the last one's value.
        """
        return pull_of(reads, self._source)

    def _source(self, key: Key) -> tuple[BucketState | None, Array]:
        """The bucket of a key and its flat value there; without a bucket, where it has no place."""
        if key not in self.places:
            return None, self.places.unplaced(key).reshape(-1)
        slot = self.places[key]
        return slot.state, slot.weight

    def read(self, pull: Pull, row: Sequence[Array]) -> None:
        """Copy values, as of the last flush, into arrays."""
        for state in pull.states:
            self._take_up(state)
        if pull.to_host:
            self._comm.synchronize()
        for take in pull.takes:
            outs = chosen(row, take.numbers)
            take.table = self.kernels.unpack_all(take.sources, outs, take.table)

    def current(self, key: Key) -> Array:
        """A key's value as of the last flush, of the key's shape; not to be written."""
        if key not in self.places:
            return self.places.unplaced(key)
        slot = self.places[key]
        self._take_up(slot.state)
        return slot.weight_view
