"""`Updates`: the update rule in force on this rank, and the errors of the user's updater."""

from __future__ import annotations

from collections.abc import Sequence

from ncclkv.comm.base import Communicator
from ncclkv.engine.bucket_state import BucketState, Slot
from ncclkv.engine.placement import Placement
from ncclkv.engine.update_rule import Assign, Rule
from ncclkv.errors import UpdaterError


class Updates:
    """Runs the update rule of one store on the ranks that the placement selects.

    A verb raises the updater's exception at its end, after all its collectives.

    Attributes
    ----------
    placement : Placement
    rule : Rule
        The rule in force.
    error : Exception or None
        Pending exception of the user's updater, which no verb has raised yet.
    failure : str or None
        On the root, the text of its updater's exception, until the other ranks have received it.
    applying : bool
        True while a push is applied, and after an exception in the middle of a push.
    unshared : bool
        Whether the root has run a function, and its exception, if any, was not yet sent to the
        other ranks by `share_failure`; equal on all ranks.
    """

    def __init__(self, comm: Communicator, placement: Placement) -> None:
        self.placement = placement
        self.rule: Rule = Assign(comm.kernels)
        self.error: Exception | None = None
        self.failure: str | None = None
        self.applying = False
        self.unshared = False
        self._comm = comm

    @property
    def torn(self) -> bool:
        """Return whether an exception ended a push after an optimizer had updated a part of it.

        A repeated push would update that part twice.
        """
        return self.applying and not (self.rule.replaces or self.rule.by_key)

    def allocate(self, state: BucketState, rule: Rule | None = None) -> None:
        """Allocate a rule's states of a bucket that has its values, if this rank updates.

        Parameters
        ----------
        state : BucketState
        rule : Rule, optional
            By default the rule in force.
        """
        if self.placement.updates:
            (rule or self.rule).allocate(state)

    def dispose(self, rule: Rule) -> None:
        """End the use of a rule; an exception of the user's ``dispose`` becomes `error`."""
        error = rule.dispose()
        self.error = self.error or error

    def pop_error(self) -> Exception | None:
        """Return the pending exception of the user's updater, and clear it."""
        error, self.error = self.error, None
        return error

    def run(self, slots: Sequence[Slot]) -> None:
        """Call the user's updater for keys in the order given, if this rank updates.

        An exception ends the updates, and becomes `error`, which the verb raises at its end.  If
        `run` raised the exception, ranks without an updater would wait in vain for the verb's
        remaining collectives.
        """
        placement = self.placement
        self.unshared = not placement.replicated and self._comm.size > 1
        if not placement.updates:
            return
        with self._comm.on_comm_stream():
            for slot in slots:
                error = self.rule.run(slot)
                if error is not None:
                    self.error = error
                    key = slot.entry.key
                    self.failure = f"{type(error).__name__}: {error}, at key {key!r}"
                    return

    def share_failure(self) -> None:
        """Broadcast the text of the root's exception to all ranks; collective, if `unshared`."""
        if self.unshared:
            control, leader = self._comm.control, self.placement.leader
            self.receive(control.broadcast(self.failure, leader, "the updater's exception"))

    def receive(self, failure: str | None) -> None:
        """Set `error` to an exception with the root's text, on ranks that run no updater."""
        self.unshared, self.failure = False, None
        if failure is not None and not self.placement.updates:
            leader = self.placement.leader
            self.error = self.error or UpdaterError(
                f"rank {self._comm.rank} of {self._comm.size}: the updater raised {failure}, on "
                f"rank {leader}; the flush updated no later key, and all ranks have the values of "
                f"rank {leader}: correct the updater there"
            )
