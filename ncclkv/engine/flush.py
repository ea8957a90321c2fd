"""`FlushPolicy`: the times at which buckets are reduced; `EagerFlush`: as soon as each is full."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ncclkv.engine.reducer import Reducer
from ncclkv.engine.storage import StoredBucket
from ncclkv.table.registry import Key


class FlushPolicy:
    """The times at which the buckets of a store are reduced.

    By default every flush reduces all buckets together, and a push launches none.  A store has one
    policy at a time.  All ranks call its methods in the same order.

    Attributes
    ----------
    flushes_everything : bool
        Whether every flush reduces all buckets together.
    allows_missing : bool
        Whether ranks may push different keys, or push at different times.
    launches_full : bool
        Whether a push that fills a bucket launches it at once, whatever its gradients hold.
    """

    flushes_everything = True
    launches_full = False
    allows_missing = False

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._comm, self._layout = reducer.comm, reducer.layout
        self._kernels, self._updates = reducer.comm.kernels, reducer.updates

    def end_norm(self, step: Any) -> None:
        """Flush pushes that share one norm, if any was made under another step; collective then."""
        norms = self._updates.rule.norms
        if norms is None or not norms.clips:
            return
        # In all buckets: which keys share a bucket must not decide which keys share a norm.
        waiting = (state for state in self._layout.states if state.waiting or state.deferred)
        if any(state.step != step for state in waiting):
            self.flush()

    def make_room(self, state: StoredBucket) -> None:
        """Launch the pushes waiting in a bucket, for a push that conflicts; collective."""
        self.flush()

    def packed(self, state: StoredBucket, *, last: bool = False) -> None:
        """Launch a bucket into which a push has been packed, if it is ready; collective.

        Parameters
        ----------
        state : StoredBucket
        last : bool
            Whether the bucket gets no further push before it is launched, even if it is not full.
        """

    def update_by_key(self, keys: Collection[Key]) -> None:
        """Wait for the sums of `keys`, and run the user's function on them; collective.

        The rule updates by key, and a push of the keys ends.
        """

    def flush(self) -> None:
        """Reduce all that was pushed, and wait for the sums; collective."""
        self.prepare_read(())

    def prepare_read(self, states: Sequence[StoredBucket]) -> None:
        """Launch all that a read of `states` needs, if need be after an exchange; collective."""

    def share_failure(self) -> None:
        """Send the exception of an updater on the root to all ranks, if any has run; collective."""
        self._updates.share_failure()


class EagerFlush(FlushPolicy):
    """Reduces each bucket as soon as all its keys are pushed, others when they are read.

    Ranks push the same keys, so all ranks launch the same buckets without an exchange.
    """

    flushes_everything = False
    launches_full = True

    def make_room(self, state: StoredBucket) -> None:
        self._reducer.launch(state)

    def packed(self, state: StoredBucket, *, last: bool = False) -> None:
        if last or len(state.waiting) == state.key_count or self._updates.rule.by_key:
            self._reducer.launch(state)

    def update_by_key(self, keys: Collection[Key]) -> None:
        self._reducer.complete(self._layout.states)
        self._reducer.update_keys(keys)

    def flush(self) -> None:
        for state in self._layout.states:
            self._reducer.launch(state)
        self._reducer.complete(self._layout.states)

    def prepare_read(self, states: Sequence[StoredBucket]) -> None:
        for state in states:
            if state.waiting:
                self._reducer.launch(state)
        if not self._updates.placement.replicated:
            self._reducer.publish(states)
