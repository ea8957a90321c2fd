"""`Reducer`: launches the collectives of buckets, and waits for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING

from ncclkv import concurrency
from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.types import Apply, Work
from ncclkv.engine.events import Events, TimedUpdate
from ncclkv.engine.gathered import MAX_SPAN_BYTES, MIN_SPANS, Target
from ncclkv.engine.layout import Layout
from ncclkv.engine.reduction import Senders, Span
from ncclkv.engine.rules_in_force import RulesInForce
from ncclkv.engine.storage import Array, StoredBucket
from ncclkv.kernels.host.chunks import working_dtype
from ncclkv.table.key_names import listed
from ncclkv.table.registry import Key

if TYPE_CHECKING:
    from ncclkv.engine.norms import NormUpdates


@dataclass(eq=False)
class Reducer:
    """Launches and completes the collectives of one store's buckets.

    Attributes
    ----------
    comm : Communicator
    layout : Layout
    updates : RulesInForce
        The rule that the sums go through.
    events : Events
    """

    comm: Communicator
    layout: Layout
    updates: RulesInForce
    events: Events

    def launch(
        self,
        state: StoredBucket,
        keys: Set[Key] | None = None,
        senders: Senders | None = None,
        skip_flag: Array | None = None,
    ) -> None:
        """Launch the reduction of keys pushed into a bucket, if any were; collective.

        Parameters
        ----------
        state : StoredBucket
        keys : set of keys, optional
            Launch those of them alone.
        senders : frozenset of int, optional
            The ranks whose gradients are in the sums, if these are not all.
        skip_flag : ndarray of int32, shape (1,), optional
            Updates do nothing if it is not 0 when they run.
        """
        if not state.waiting:
            return
        updates, placement = self.updates, self.updates.placement
        within, updates.applying = updates.applying, True
        pushed, spans = state.select(keys)
        since = concurrency.perf_counter() if len(pushed) == state.key_count else None
        rule = updates.rules[state.bucket.storage]  # not `of`: a call more
        rule.count_update(state.bucket, pushed)
        updates_here = placement.updates
        targets = rule.target(state, spans, skip_flag) if updates_here else self._kept(state, spans)
        if spans and not placement.replicated:
            state.mark_stale(spans[0].lo, spans[-1].hi)
        if len(spans) >= MIN_SPANS and self.comm.blocks and rule.norms is None:
            spans, targets = self._gather(state, spans, targets)
        # All are prepared before the first is launched: a launch that lacks memory is made again.
        prepared = []
        for index, span in enumerate(spans):  # zip takes an eighth of a short launch
            (receive, apply), op = targets[index], state.bucket.op
            if span.reduction is None and senders is not None and op == "avg":
                op, (span, receive, apply) = "sum", self._average(span, receive, senders, apply)
            wanted, collective = (op, receive is span.weights, senders), span.collective
            if collective is None or span.prepared_for != wanted:
                collective = self._prepare(state, span, receive, wanted)
            prepared.append((span, collective, apply))
        for span, collective, apply in prepared:
            if self.events.listeners:
                work = self._launch_observed(span, collective, apply)
            else:
                self.events.sequence += 1
                work = collective.launch(apply)
            state.add(work, since)
        state.end_launch(pushed)
        updates.applying = within

    def _kept(self, state: StoredBucket, spans: Sequence[Span]) -> list[Target]:
        """Return the targets of ranges on a rank that does not update."""
        if self.updates.of(state).norms is not None:
            # Else this rank alone would lend the gradients before a flush.
            state.defer(None)
        return [(span.gradients, None) for span in spans]

    def _prepare(
        self,
        state: StoredBucket,
        span: Span,
        receive: Array,
        wanted: tuple[str, bool, Senders | None],
    ) -> Collective:
        """Prepare the reduction of a span, in place of that of an earlier use."""
        op, _, senders = wanted
        reduction = span.reduction or state.reductions.dense
        collective = reduction.prepare(span, receive, op, senders)
        collective.label = span.label
        span.collective, span.prepared_for = collective, wanted
        return collective

    def _launch_observed(self, span: Span, collective: Collective, apply: Apply | None) -> Work:
        """Launch a reduction, and emit its events and the time of its update."""
        timed = None if apply is None else TimedUpdate(apply, span.label)
        work = self.events.launch(
            partial(collective.launch, timed),
            span.to.collective,
            span.label,
            span.gradients.nbytes,
            collective.wire_bytes,
            bucket=span.bucket_index,
            keys=span.keys,
            root=span.to.root,
        )
        if timed is not None:
            self.events.emit_with(work, timed)
        return work

    def _gather(
        self, state: StoredBucket, spans: Sequence[Span], targets: Sequence[Target]
    ) -> tuple[Sequence[Span], list[Target]]:
        """Copy short ranges into one array, if there are many; return what to launch.

        All ranks push the same keys, and so gather the same ranges.  No earlier sum of the array is
        in flight: a push waits for these before it writes gradients.
        """
        short = [
            span.reduction is None and span.gradients.nbytes <= MAX_SPAN_BYTES for span in spans
        ]
        if sum(short) < MIN_SPANS:
            return spans, [*targets]
        gathered = state.gathered([*compress(spans, short)])
        gathered.fill()
        long = [not each for each in short]
        target = gathered.target(
            [*compress(targets, short)], updates=self.updates.placement.updates
        )
        return (
            [gathered.whole, *compress(spans, long)],
            [target, *compress(targets, long)],
        )

    def _average(
        self, span: Span, receive: Array, senders: Senders, then: Apply | None
    ) -> tuple[Span, Array, Apply]:
        """Return the span to sum, the array for its sum, and an update that makes the average.

        The update divides the sum by the count of senders, writes it to `receive`, and calls
        `then`.
        """
        kernels, dtype = self.comm.kernels, span.gradients.dtype
        working, total = working_dtype(dtype, "avg"), receive
        if working != dtype:  # a sum in this dtype would wrap, or be rounded
            total = kernels.empty(span.gradients.shape, working)
            kernels.unpack(span.gradients, total)
            span = replace(span, gradients=total, weights=total, collective=None)

        def apply(lo: int, hi: int) -> None:
            summed = total[lo:hi]
            kernels.divide(summed, len(senders))
            if total is not receive:
                kernels.unpack(summed, receive[lo:hi])
            if then is not None:
                then(lo, hi)

        return span, total, apply

    def complete(self, states: Iterable[StoredBucket]) -> None:
        """Wait for all that is in flight in the given buckets."""
        for state in states:
            if state.works:
                state.complete()

    def finish(self, states: Sequence[StoredBucket]) -> None:
        """Wait for all in flight in buckets, and make updates that need norms; collective."""
        self.complete(states)
        updates, norms = self.updates, self.updates.rule.norms
        if norms is not None:
            within, updates.applying = updates.applying, True
            self._finish_norms(norms, states)
            updates.applying = within

    def _finish_norms(self, norms: NormUpdates, states: Sequence[StoredBucket]) -> None:
        """Make the updates that need norms, and emit their time if there are any."""
        finish = partial(norms.finish, self.comm, states)
        if self.events.listeners and any(state.deferred for state in states):
            self.events.timed("updated", finish, f"{self.updates.rule.name}, by norms")
        else:
            finish()

    def publish(self, states: Sequence[StoredBucket]) -> None:
        """Wait for the sums of buckets, and launch what publishes their updates; collective."""
        placement = self.updates.placement
        if placement.replicated:
            return
        # A wait for a reduction runs its update, which must precede the publication.
        self.complete(states)
        for state in states:
            if state.stale is None:
                continue
            span = state.span(state.stale)
            publish = partial(placement.publish, span)
            state.end_publication(
                self.events.launch(
                    publish,
                    "allgather" if span.to.root is None else "broadcast",
                    span.label,
                    span.weights.nbytes,
                    0,
                    bucket=span.bucket_index,
                    keys=span.keys,
                    root=span.to.root,
                )
            )

    def update_keys(self, keys: Iterable[Key]) -> None:
        """Run the user's updater on keys that are reduced, in MXNet's order."""
        order = self.layout.registry.update_order(keys)
        run = partial(self.updates.run, [self.layout[key] for key in order])
        if self.events.listeners:
            self.events.timed("updated", run, listed(order))
        else:
            run()
