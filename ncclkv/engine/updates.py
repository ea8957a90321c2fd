"""`Updates`: the update rule in force on this rank, and the errors of the user's updater."""

from __future__ import annotations

from collections.abc import Sequence

from ncclkv.comm.base import Communicator
from ncclkv.engine.bucket_state import BucketState, Slot
from ncclkv.engine.placement import Placement
from ncclkv.engine.update_rule import Assign, Rule
from ncclkv.errors import UpdaterError


class Updates:
    """Runs the update rule of one store where the placement says so.

    An updater's exception is raised at the end of the verb, after all collectives of the verb.

    Attributes
    ----------
    placement : Placement
    rule : Rule
        The rule in force.
    error : Exception or None
        Exception of the user's updater that is not raised yet.
    failure : str or None
        Text of the root's exception, on the root, until it has been sent to the other ranks.
    applying : bool
        Whether a push is being applied; still True after an exception in the middle of it.
    unshared : bool
        Whether a function has run on the root alone since `share_failure`; equal on all ranks.
    """

    def __init__(self, comm: Communicator, placement: Placement) -> None:
        self.placement = placement
        self.rule: Rule = Assign()
        self.error: Exception | None = None
        self.failure: str | None = None
        self.applying = False
        self.unshared = False
        self._comm = comm

    @property
    def torn(self) -> bool:
        """Return whether a push was applied in part, by an optimizer that would repeat the part."""
        return self.applying and not (self.rule.replaces or self.rule.by_key)

    def allocate(self, state: BucketState) -> None:
        """Allocate the optimizer's states of a bucket, if this rank updates."""
        if self.placement.updates:
            self.rule.allocate(state)

    def start(self, state: BucketState) -> None:
        """Initialise the optimizer's states of a bucket that has its values."""
        if self.placement.updates:
            self.rule.start(state)

    def prepare(self, rule: Rule, states: Sequence[BucketState]) -> None:
        """Allocate and initialise the states of a rule that is not in force yet."""
        for state in states if self.placement.updates else ():
            rule.allocate(state)
            rule.start(state)

    def dispose(self, rule: Rule) -> None:
        """End the use of a rule; an exception of the user's ``dispose`` becomes `error`."""
        error = rule.dispose()
        self.error = self.error or error

    def run(self, slots: Sequence[Slot]) -> None:
        """Let the user's updater fold the sums of keys into their values, in the order given."""
        placement = self.placement
        self.unshared = not placement.replicated and self._comm.size > 1
        if not placement.updates:
            return
        with self._comm.on_comm_stream():
            raised = self.rule.run(slots)
        if raised is not None:
            self.error, key = raised
            self.failure = f"{type(self.error).__name__}: {self.error}, at key {key!r}"

    def share_failure(self) -> None:
        """Broadcast the text of the root's exception to all ranks; collective, if `unshared`."""
        if self.unshared:
            control, leader = self._comm.control, self.placement.leader
            self.receive(control.broadcast(self.failure, leader, "what the updater raised"))

    def receive(self, failure: str | None) -> None:
        """Make an `error` of the text of the root's exception, where the updater does not run."""
        self.unshared, self.failure = False, None
        if failure is not None and not self.placement.updates:
            leader = self.placement.leader
            self.error = self.error or UpdaterError(
                f"rank {self._comm.rank} of {self._comm.size}: the updater raised {failure}, on "
                f"rank {leader}, and the rest of that flush was not updated; all ranks have the "
                f"values of rank {leader}: mend the updater there"
            )
