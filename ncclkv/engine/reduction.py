"""Collectives of buckets: what is reduced to where, and what becomes of it as it arrives."""

from __future__ import annotations

from time import perf_counter

from ncclkv.comm.base import Communicator
from ncclkv.comm.types import Apply
from ncclkv.engine.bucket_state import Array, BucketState
from ncclkv.engine.nonfinite import DeviceNonfiniteCheck
from ncclkv.engine.placement import Placement
from ncclkv.engine.update_rule import Assign, FusedRule, Rule
from ncclkv.kernels.base import Kernels
from ncclkv.optimizer.fused import Update
from ncclkv.table import plan


class BucketReduction:
    """Starts the collectives of one store."""

    def __init__(self, comm: Communicator, placement: Placement, kernels: Kernels) -> None:
        self._comm = comm
        self._placement = placement
        self._kernels = kernels

    def launch(
        self,
        state: BucketState,
        rule: Rule,
        active: int | None = None,
        flagged: DeviceNonfiniteCheck | None = None,
    ) -> None:
        """Start to reduce what was pushed into a bucket.

        Averages count `active` ranks, by default all; what is `flagged` may come to nothing.
        """
        state.launched = True
        since = perf_counter() if state.full else None
        root = self._placement.root
        skip = None if flagged is None else flagged.skip
        update = None
        if self._placement.updates and isinstance(rule, FusedRule):
            update = rule.begin(state, skip)
        for span in plan.spans(state.bucket, state.pushed):
            lo, hi, gradients, weights, label = state.span(span)
            receive = gradients
            apply: Apply | None = None
            if self._placement.updates:
                if isinstance(rule, Assign) and skip is not None:
                    apply = self._unless(skip, gradients, weights)
                elif isinstance(rule, Assign):
                    receive = weights
                elif update is not None:
                    apply = _shifted(update, lo)
            op = state.bucket.op
            if op == "avg" and active is not None and active < self._comm.size:
                op, apply = "sum", self._dividing(receive, active, apply)
            work = self._comm.reduce_apply(
                gradients, receive, op, apply, root, sharded_update=state.common
            )
            work.label = label
            state.in_flight.add(work, since)
            if root is not None:
                state.mark_stale(lo, hi)
        state.pushed.clear()

    def _unless(self, skip: Array, total: Array, weights: Array) -> Apply:
        """Let a sum replace values, unless the flush is skipped."""
        kernels = self._kernels
        return lambda lo, hi: kernels.assign(total[lo:hi], weights[lo:hi], skip)

    def publish(self, state: BucketState, root: int) -> None:
        """Start to give every rank what the root alone has updated."""
        if state.stale is None:
            return
        stale = state.span(state.stale)
        work = self._comm.broadcast(stale.weights, root)
        work.label = stale.label
        state.in_flight.add(work)
        state.stale = None

    def _dividing(self, total: Array, active: int, then: Apply | None) -> Apply:
        """Divide a sum by the number of active ranks, before what follows."""
        kernels = self._kernels

        def apply(lo: int, hi: int) -> None:
            part = total[lo:hi]
            # An average of as many parts, of which all but one are nothing.
            nothing = kernels.zeros(hi - lo, part.dtype)
            kernels.reduce([part, *[nothing] * (active - 1)], part, "avg")
            if then is not None:
                then(lo, hi)

        return apply


def _shifted(update: Update, start: int) -> Apply:
    """Return `update` on ranges that are counted from element `start` of the bucket."""
    return lambda lo, hi: update(start + lo, start + hi)
