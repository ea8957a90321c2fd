"""`Pushes`: the pushes into a bucket, from their packing to the end of their updates.

A key waits from its push to its launch.  Its gradient is needed for longer if the update waits for
norms.  What each push reads is an attribute, not a property: each call of Python takes a percent
of the time of a small push.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from typing import Any

from ncclkv.comm.types import DoneWork, Work
from ncclkv.engine.in_flight import InFlight
from ncclkv.table.bucket import Range
from ncclkv.table.registry import Key


class Pushes(InFlight):
    """The pushes into a bucket, and its collectives in flight.

    Parameters
    ----------
    key_count : int
        Count of keys in the bucket.

    Attributes
    ----------
    key_count : int
        As given; the bucket is full when as many keys wait.
    waiting : set of keys
        Keys pushed since the last launch.
    step : Any
        The optimizer's step under which they were pushed.
    launched : bool
        Whether the bucket has been launched under the update rule in force.
    deferred : sequence of object
        Launches whose updates wait for norms, and still need the gradients: each a `NormLaunch`, or
        None if other ranks make the update.
    stale : (int, int) or None
        Range of elements that were updated and not yet published to all ranks.
    """

    def __init__(self, key_count: int) -> None:
        super().__init__()
        self.key_count = key_count
        self._waiting: set[Key] = set()
        self.waiting: Set[Key] = self._waiting
        # Those of the waiting keys whose gradients are the neutral element of their op.
        self._filled: set[Key] = set()
        self.step: Any = None
        self.launched = False
        self._deferred: list[object] = []
        self.deferred: Sequence[object] = self._deferred
        self.stale: Range | None = None

    # Keys that wait

    def push(self, keys: Set[Key], step: Any) -> None:
        """Add keys whose gradients are packed, under a step of the optimizer."""
        self._waiting |= keys
        self.step = step

    def push_filled(self, key: Key) -> None:
        """Add a key whose gradient is the neutral element of its op."""
        self._waiting.add(key)
        self._filled.add(key)

    def set_step(self, step: Any) -> None:
        """Set the step of all keys that wait."""
        self.step = step

    def drop(self, keys: Collection[Key] | None = None) -> None:
        """Drop the pushes of keys, by default of all, that are not launched."""
        dropped = self._waiting.copy() if keys is None else keys
        self._filled.difference_update(dropped)
        self._waiting.difference_update(dropped)

    @property
    def own(self) -> Set[Key]:
        """The keys that wait with the program's gradients, not with neutral elements."""
        return self._waiting - self._filled if self._filled else self._waiting

    def conflicts(self, keys: Set[Key], step: Any) -> bool:
        """Return whether a push of keys under a step must be packed after a launch."""
        if self._deferred:
            return True
        changed = bool(self._waiting) and self.step != step
        return changed or not self._waiting.isdisjoint(keys)

    def needs(self, key: Key) -> bool:
        """Return whether the gradient of a key is still to be reduced, or to be updated from."""
        return key in self._waiting or bool(self._deferred)

    # Launches

    def end_launch(self, keys: Set[Key]) -> None:
        """Remove keys that wait no more: all their collectives are launched."""
        self._filled -= keys
        self._waiting -= keys

    def end_assignment(self) -> None:
        """Record that values were assigned in place of a launch, of which nothing is in flight."""
        self.add(DoneWork())
        self.launched = True

    def defer(self, launch: object) -> None:
        """Keep the gradients for an update that waits for norms."""
        self._deferred.append(launch)

    def end_deferred(self) -> None:
        """Record that the deferred updates are made."""
        self._deferred.clear()

    # Values that other ranks lack

    def mark_stale(self, lo: int, hi: int) -> None:
        """Record that the new values of elements ``[lo, hi)`` are to be published."""
        if self.stale is not None:
            lo, hi = min(lo, self.stale[0]), max(hi, self.stale[1])
        self.stale = (lo, hi)

    def end_publication(self, work: Work) -> None:
        """Add the launched collective that publishes the stale range."""
        self.add(work)
        self.stale = None

    def forget(self) -> None:
        """Drop the pushes and launches of a captured step, which were not executed."""
        self.drop()
        self.abandon()
        self.end_deferred()
        self.stale = None
