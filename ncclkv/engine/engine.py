"""From pushed arrays to reduced, updated and readable values.

A push *stages* values into the gradients of their buckets and *launches* them: full buckets are
launched at once, partial ones wait for a reason.  A flush launches what waits and completes what
flies.  Nothing here depends on time or on the order of arrival.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ncclkv.comm.base import Communicator
from ncclkv.comm.types import DoneWork
from ncclkv.engine.batch import Push, plan_push
from ncclkv.engine.bucket_state import Array, BucketState
from ncclkv.engine.flush import Flushes
from ncclkv.engine.flush_agreement import FlushAgreement
from ncclkv.engine.layout import Layout
from ncclkv.engine.placement import Placement
from ncclkv.engine.update_rule import Assign, FunctionRule, Rule
from ncclkv.errors import UsageError
from ncclkv.kernels.base import Kernels
from ncclkv.table import plan
from ncclkv.table.cost import Sizing
from ncclkv.table.registry import Key


class Engine(Flushes):
    """The values of one store on one rank."""

    def __init__(
        self,
        comm: Communicator,
        kernels: Kernels,
        placement: Placement,
        sizing: Sizing,
        *,
        zeros: bool = False,
        nonfinite: str = "ignore",
    ) -> None:
        # Weak, or a store that is dropped would keep its memory until the garbage is collected.
        adopt, start = weakref.WeakMethod(self._adopt), weakref.WeakMethod(self._start)
        layout = Layout(comm, kernels, sizing, adopt, start, common=placement.root is None)
        presence = FlushAgreement(comm, layout, kernels, zeros, nonfinite)
        super().__init__(comm, kernels, layout, placement, presence)

    # Keys

    def gradient(self, key: Key) -> Array:
        """A key's place in the gradients, for the user to fill."""
        slot = self.layout[key]
        if key in slot.state.pushed:
            raise UsageError(
                f"grad_view of key {key!r}: it was pushed and waits in its bucket, so its gradient "
                f"is the store's; pull it, or call wait({key!r}), first"
            )
        self._take_up(slot.state)
        slot.lent = True
        # A view of the caller's own, whose shape may be changed.
        own: Array = slot.gradient_view.view()
        return own

    def replace(self, key: Key, value: Array) -> None:
        """Set a key's value, the same on every rank, and drop what its updater remembers."""
        if key not in self.layout:
            self.layout.replace_pending(key, value)
            return
        slot = self.layout[key]
        self.settle([slot.state])
        self.kernels.pack(value, slot.weight)
        self.rule.reset(slot)

    def set_rule(self, rule: Rule) -> None:
        """Apply what was pushed under the old rule, then follow another; all ranks together.

        They must have sealed the same keys.
        """
        self.flush()
        before, self.rule = self.rule, rule
        self.presence.flagged = self._flagged is not None and rule.can_skip
        if isinstance(rule, FunctionRule):
            self.layout.unshare_weights()
        for state in self.layout.states:
            state.launched = False
            self._adopt(state)
            self._start(state)
        if rule.source is not before.source:
            self._dispose(before)

    def dispose(self) -> None:
        """End the use of the rule in force."""
        self._dispose(self.rule)

    def _dispose(self, rule: Rule) -> None:
        """End the use of a rule; what the user's code raises there is raised late."""
        raised = rule.dispose()
        self.raised = self.raised or raised

    def _adopt(self, state: BucketState) -> None:
        """Let the rule get what it needs for a bucket."""
        if self.placement.updates:
            self.rule.allocate(state)

    def _start(self, state: BucketState) -> None:
        """Let the rule make ready what it has for a bucket."""
        if self.placement.updates:
            self.rule.start(state)

    # Push

    def plan_push(self, values: Mapping[Key, Sequence[Array]]) -> tuple[Push, list[Array]]:
        """Sort this rank's values of each key; return them in a row, too.

        What a push could overwrite while it reads it is copied: that is what lies in a bucket,
        other than in its own key's gradient.  The first call gives keys their slots.
        """
        return plan_push(values, self.layout.__getitem__, self._safe)

    def _safe(self, array: Array) -> Array:
        """The array, or a copy when it lies in a bucket."""
        return array if self.layout.bucket_around(array) is None else self.kernels.copy(array)

    def ready(self, batch: Push) -> Any:
        """Refuse what cannot be pushed now; the step that `push` is to make of it."""
        self.check_free(batch)
        return self.rule.step()

    def push(self, batch: Push, row: Sequence[Array], priority: int, step: Any) -> None:
        """Stage and commit a batch that is ready."""
        alone = self._comm.size == 1 and self.recording is None and not self._whole
        if alone and batch.whole and isinstance(self.rule, Assign):
            self._assign(batch, row)
            return
        self._make_room(batch, step)
        self.stage(batch, row)
        priorities = {part.state.bucket.index: priority for part in batch.parts}
        self.launch_full(priorities, batch.indices, step)

    def check_free(self, batch: Push) -> None:
        """Refuse gradients that are the store's."""
        for part in batch.parts:
            again = part.keys & part.state.pushed if self.presence.zeros else ()
            for key in again:
                raise UsageError(
                    f"push of key {key!r}: it was pushed and not flushed, and with missing='zeros' "
                    f"other ranks need not know of it; pull a key, or wait, between two pushes"
                )
            for slot in part.in_place:
                if slot.entry.key in part.state.pushed or part.state.in_flight:
                    raise UsageError(
                        f"push of key {slot.entry.key!r}: its grad_view was pushed and not "
                        f"flushed, so it is the store's; pull the key, or wait for it, before "
                        f"filling it again"
                    )

    def _make_room(self, batch: Push, step: Any) -> None:
        """Launch what waits in the buckets of a batch and cannot fly with it."""
        for part in batch.parts:
            state = part.state
            if not state.pushed.isdisjoint(part.keys) or (state.pushed and state.step != step):
                if self._whole:
                    self.flush()
                    return
                self._launch(state)

    def stage(self, batch: Push, row: Sequence[Array]) -> None:
        """Reduce this rank's values of each key into its place in the gradients."""
        for part in batch.parts:
            self._take_up(part.state)
            part.copy(row, part.gradients, self.kernels)
            part.state.pushed |= part.keys

    def _assign(self, batch: Push, row: Sequence[Array]) -> None:
        """Reduce the values of whole buckets into the weights: of one rank, that is their sum."""
        for part in batch.parts:
            self._launch(part.state)
            part.state.in_flight.complete()
            part.copy(row, part.weights, self.kernels)
            part.state.in_flight.add(DoneWork())
            part.state.launched = True

    def launch_full(self, priorities: Mapping[int, int], keys: Collection[Key], step: Any) -> None:
        """Launch the buckets that the staged keys filled; with a function as updater, run it.

        Parameters
        ----------
        priorities : mapping of int to int
            Of the buckets, by their numbers.
        keys : collection of keys
        step : Any
            Of `ready`.
        """
        function, whole = isinstance(self.rule, FunctionRule), self._whole
        states = [self.layout.states[index] for index in plan.launch_order(priorities)]
        for state in states:
            state.step = step
            if not whole and (function or state.full):
                self._launch(state)
        if function and not self.presence.allows_missing:
            self.flush(states)
            if not self.presence.needs_exchange:
                self._update(keys)

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget that `keys` were pushed."""
        for key in keys:
            if key in self.layout:
                self.layout[key].state.pushed.discard(key)
