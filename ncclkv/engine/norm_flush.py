"""`NormFlush`: flushes that end updates which need norms of whole keys.

The second pass needs collectives, so it runs where all ranks call.  Such calls are a pull, a wait,
a flush, and the next push into the bucket.  Until then ``value`` returns the value before the push,
the store keeps the gradients, and ``grad_view`` is refused.

If ``clip_global_norm`` is set, a flush ends at a read, a second push of a key, or a push after a
change of a hyperparameter.  The layout of buckets has no effect on it.  So an overlap block
launches no bucket of which it pushes only a part.
"""

from __future__ import annotations

from collections.abc import Sequence

from ncclkv.engine.flush import EagerFlush
from ncclkv.engine.storage import StoredBucket


class NormFlush(EagerFlush):
    """Reduces each bucket as soon as it is full, and updates it when it is read or refilled.

    With clipping by the global norm all buckets are updated together: a read of one key reduces all
    keys that were pushed.
    """

    def packed(self, state: StoredBucket, *, last: bool = False) -> None:
        # Also for the last push of a block: the update of a part would be made before a push of
        # another part.  So the layout of buckets would decide which keys have one norm.
        super().packed(state)

    def make_room(self, state: StoredBucket) -> None:
        self._finish([state])

    def flush(self) -> None:
        self._finish(self._layout.states)

    def prepare_read(self, states: Sequence[StoredBucket]) -> None:
        self._finish(states)
        if not self._updates.placement.replicated:
            self._reducer.publish(states)

    def _finish(self, states: Sequence[StoredBucket]) -> None:
        """Reduce and update what was pushed into buckets."""
        norms = self._updates.rule.norms
        if norms is not None and norms.clips:
            states = self._layout.states
        for state in states:
            self._reducer.launch(state)
        self._reducer.finish(states)
