"""`RulesInForce`: the update rules of this rank, and the pending exception of an updater."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ncclkv.comm.base import Communicator
from ncclkv.comm.destinations import To
from ncclkv.engine.placement import Placement
from ncclkv.engine.storage import StoredBucket, StoredKey
from ncclkv.engine.storage_table import rules_of
from ncclkv.engine.update_rule import Assign, Rule
from ncclkv.errors import UpdaterError
from ncclkv.table.bucket import Bucket
from ncclkv.table.registry import DENSE


class RulesInForce:
    """Runs the update rule of one store on the ranks that the placement selects.

    A verb raises the updater's exception at its end, after all its collectives.

    Attributes
    ----------
    placement : Placement
    rule : Rule
        The rule in force, which is that of dense keys.
    rules : dict of Rule
        The rule of each storage, by its name.
    error : Exception or None
        Pending exception of the user's updater, which no verb has raised yet.
    failure : str or None
        The text of the updater's exception on this rank, until the other ranks have received it.
    applying : bool
        True while a push is applied, and after an exception in the middle of a push.
    unshared : bool
        Whether only a part of the ranks has run a function for each key, and the exceptions, if
        any, were not yet sent to the other ranks by `share_failure`; equal on all ranks.
    """

    def __init__(self, comm: Communicator, placement: Placement) -> None:
        self.placement = placement
        self.rule: Rule = Assign(comm.kernels)
        self.rules: Mapping[str, Rule] = rules_of(self.rule)
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

    def plan(
        self, buckets: Sequence[Bucket], loads: list[int], rule: Rule | None = None
    ) -> Sequence[To]:
        """Return the destinations of the sums of buckets, by default for the rule in force.

        `loads` is as of `ncclkv.table.plan.divide`.
        """
        if (rule or self.rule).by_key:
            return self.placement.by_key(buckets, loads)
        return [self.placement.to(bucket.count) for bucket in buckets]

    def of(self, state: StoredBucket) -> Rule:
        """Return the rule of the keys of a bucket."""
        return self.rules[state.bucket.storage]

    def put(self, rules: Mapping[str, Rule]) -> None:
        """Put the rules of all storages in force."""
        self.rule, self.rules = rules[DENSE], rules

    def allocate(
        self,
        state: StoredBucket,
        rules: Mapping[str, Rule] | None = None,
        to: To | None = None,
    ) -> None:
        """Allocate a rule's states of a bucket that has its values, if this rank updates.

        Parameters
        ----------
        state : StoredBucket
        rules : mapping of Rule, optional
            The rule of each storage; by default the rules in force.
        to : To, optional
            The destination of sums under the rule; by default the bucket's own.
        """
        if self.placement.updates:
            (rules or self.rules)[state.bucket.storage].allocate(state, to or state.to)

    def dispose(self, rule: Rule) -> None:
        """End the use of a rule; an exception of the user's ``dispose`` becomes `error`."""
        error = rule.dispose()
        self.error = self.error or error

    def pop_error(self) -> Exception | None:
        """Return the pending exception of the user's updater, and clear it."""
        error, self.error = self.error, None
        return error

    def run(self, slots: Sequence[StoredKey]) -> None:
        """Call the user's updater for the keys that this rank updates, in the order given.

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
                if not slot.state.updates_key(slot.entry):
                    continue
                error = self.of(slot.state).run(slot)
                if error is not None:
                    self.error = error
                    key = slot.entry.key
                    self.failure = f"{type(error).__name__}: {error}, at key {key!r}"
                    return

    def share_failure(self) -> None:
        """Send the text of each rank's exception to all ranks; collective, if `unshared`."""
        if self.unshared:
            self.receive(self._comm.control.allgather(self.failure, "the updater's exception"))

    def receive(self, failures: Sequence[str | None]) -> None:
        """Set `error` to an exception with the first rank's text, if this rank has raised none.

        Parameters
        ----------
        failures : sequence of str or None
            `failure` of each rank.
        """
        own, self.failure, self.unshared = self.failure, None, False
        first = next((rank for rank, text in enumerate(failures) if text is not None), None)
        if self.placement.replicated or own is not None or first is None:
            return
        self.error = self.error or UpdaterError(
            f"rank {self._comm.rank} of {self._comm.size}: the updater raised {failures[first]}, "
            f"on rank {first}; rank {first} updated no later key, and all ranks have the values "
            f"of rank {first} of the keys it updates: correct the updater there",
            ranks=[first],
        )
