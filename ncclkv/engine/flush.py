"""Flushes: what waits in buckets is launched, and what flies is completed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ncclkv.comm.base import Communicator
from ncclkv.engine.batch import Pull
from ncclkv.engine.bucket_state import Array, BucketState
from ncclkv.engine.flush_agreement import FlushAgreement, FlushPlan, Part
from ncclkv.engine.layout import Layout
from ncclkv.engine.nonfinite import DeviceNonfiniteCheck
from ncclkv.engine.placement import Placement
from ncclkv.engine.read import Reads
from ncclkv.engine.reduction import BucketReduction
from ncclkv.engine.update_rule import Assign, FunctionRule, Rule
from ncclkv.errors import UpdaterError
from ncclkv.kernels.base import Kernels
from ncclkv.table.registry import Key


class Flushes(Reads):
    """The values of one store on one rank, brought up to date before they are read.

    Attributes
    ----------
    placement : Placement
    rule : Rule
        What becomes of a sum: it replaces the value, or an updater folds it in.
    presence : FlushAgreement
        What ranks tell each other before a flush.
    raised : Exception or None
        What an updater has raised, until it is taken: what all ranks do comes first.
    untold : bool
        Whether a function has run on the root alone since the others heard what it raised; alike on
        all ranks.
    """

    def __init__(
        self,
        comm: Communicator,
        kernels: Kernels,
        layout: Layout,
        placement: Placement,
        presence: FlushAgreement,
    ) -> None:
        super().__init__(comm, kernels, layout)
        self.placement = placement
        self.rule: Rule = Assign()
        self.presence = presence
        self.raised: Exception | None = None
        self.untold = False
        self._failure: str | None = None
        self._launcher = BucketReduction(comm, placement, kernels)
        self._flagged: DeviceNonfiniteCheck | None = None
        if presence.looks and not comm.blocks:
            self._flagged = DeviceNonfiniteCheck(comm, layout, kernels)
            presence.flagged = True

    def _launch(self, state: BucketState, active: int | None = None) -> None:
        """Start to reduce what was pushed into a bucket, by all ranks or so many of them."""
        if state.pushed:
            if self.recording is not None:
                self.recording.check_launch(state)
            self._launcher.launch(state, self.rule, active)

    def plan_pull(self, reads: Sequence[tuple[Key, Array]]) -> tuple[Pull, list[Array]]:
        if self.presence.allows_missing:
            # Other ranks may have pushed what this one has not: all keys have slots, then.
            self.layout.seal()
        return super().plan_pull(reads)

    def flush(self, states: Sequence[BucketState] | None = None) -> None:
        """Launch what waits in some buckets, or in all, and complete it.

        Where flushes begin with an exchange, all is flushed.
        """
        if self.presence.needs_exchange:
            # A rank that leaves an uneven block settles meanwhile, and publishes with the others.
            self.settle(())
            return
        if self.presence.flagged:
            self._flush_flagged()
            return
        states = self.layout.states if states is None else states
        for state in states:
            if state.pushed:
                self._launch(state)
        self._complete(states)

    def _complete(self, states: Sequence[BucketState]) -> None:
        """Wait for what is launched in some buckets."""
        for state in states:
            if state.in_flight:
                state.in_flight.complete()

    @property
    def _whole(self) -> bool:
        """Whether all that was pushed is flushed together, and nothing before."""
        return self.presence.needs_exchange or self.presence.flagged

    def _flush_flagged(self) -> None:
        """Flush all, but for updates that the device leaves out."""
        flagged, states = self._flagged, [state for state in self.layout.states if state.pushed]
        if states and flagged is not None:
            flagged.find(states)
            for state in states:
                self._launcher.launch(state, self.rule, flagged=flagged)
        self._complete(self.layout.states)

    def report(self) -> None:
        """Tell of NaN that a device has found; where the host has waited for it, on all ranks."""
        if self._flagged is not None:
            self._flagged.report(self.presence)

    def _flush_agreed(self, wanted: Sequence[BucketState], part: Part = Part.STAYS) -> FlushPlan:
        """Flush what ranks agree on."""
        numbers = self.rule.hyperparameters() if self.presence.allows_missing else None
        buckets = [state.bucket.index for state in wanted]
        agreed = self.presence.agree(buckets, numbers, self.placement.root, part, self._failure)
        self._heard(agreed.failure)
        if part != Part.STAYS and agreed.active:
            self.rule.adopt(agreed.hyperparameters)
        step = self.rule.step_from(agreed.hyperparameters) if self.presence.allows_missing else None
        for state in self.layout.buckets(agreed.keys):
            if self.presence.allows_missing:
                state.step = step
            self._launch_counted(state, agreed.keys)
        self._complete(self.layout.states)
        if isinstance(self.rule, FunctionRule):
            self._update(agreed.keys)
        self.presence.restore()
        return agreed

    def _launch_counted(self, state: BucketState, counts: Mapping[Key, int]) -> None:
        """Launch a bucket; averages over different numbers of ranks need a launch each."""
        if state.bucket.op != "avg":
            self._launch(state)
            return
        pushed = state.pushed
        for count in sorted({counts[key] for key in pushed}):
            state.pushed = {key for key in pushed if counts[key] == count}
            self._launch(state, count)

    def answer(self) -> None:
        """Take part in the others' flushes without pushing, until no rank pushes any more."""
        wanted, part = self.layout.states, Part.LEAVES
        if not any(state.pushed for state in wanted):
            wanted, part = [], Part.ANSWERS
        while (agreed := self._flush_agreed(wanted, part)).active:
            self._publish([self.layout.states[number] for number in agreed.buckets])
            wanted, part = [], Part.ANSWERS

    def settle(self, states: Sequence[BucketState] | None = None) -> None:
        """Flush, and give every rank what the root alone has updated, so that all may read."""
        states = self.layout.states if states is None else states
        if self.presence.needs_exchange:
            numbers = self._flush_agreed(states).buckets
            states = [self.layout.states[number] for number in numbers]
        else:
            self.flush(states)
        self._publish(states)

    def _publish(self, states: Sequence[BucketState]) -> None:
        """Give every rank what the root alone has updated in some buckets."""
        if self.placement.root is not None:
            for state in states:
                self._launcher.publish(state, self.placement.root)
        self._complete(states)

    def _update(self, keys: Collection[Key]) -> None:
        """Let the updater fold the sums of keys into their values."""
        self.untold = self.placement.root is not None and self._comm.size > 1
        if self.placement.updates and isinstance(self.rule, FunctionRule):
            slots = [self.layout[key] for key in self.layout.registry.update_order(keys)]
            with self._comm.on_comm_stream():
                raised = self.rule.run(slots)
            if raised is not None:
                self.raised, key = raised
                self._failure = f"{type(self.raised).__name__}: {self.raised}, at key {key!r}"

    def tell(self) -> None:
        """Tell all ranks what the updater has raised on the root; collective.

        Where flushes begin with an exchange, the next one tells it.
        """
        root = self.placement.root
        if self.untold and root is not None and not self.presence.needs_exchange:
            control = self._comm.control
            self._heard(control.broadcast(self._failure, root, "what the updater raised"))

    def _heard(self, failure: str | None) -> None:
        """Raise on this rank, once the verb is done, what the updater has raised on the root."""
        self.untold, self._failure = False, None
        if failure is not None and not self.placement.updates:
            self.raised = self.raised or UpdaterError(
                f"rank {self._comm.rank} of {self._comm.size}: the updater raised {failure}, on "
                f"rank {self.placement.root}, and the rest of that flush was not updated; all "
                f"ranks have the values of rank {self.placement.root}: mend the updater there"
            )

    def pop_error(self) -> Exception | None:
        """What an updater has raised since the last call of this."""
        raised, self.raised = self.raised, None
        return raised
