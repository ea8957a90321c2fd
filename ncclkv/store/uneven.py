"""Ranks that have different numbers of batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ncclkv.store.session import IN_UNEVEN
from ncclkv.store.transfers import Transfers


class UnevenVerbs(Transfers):
    """``uneven``."""

    @contextmanager
    def uneven(self) -> Iterator[None]:
        """Let ranks leave a ``with`` block at different times; collective.

        A rank that comes to the end of the block stays there, and answers the others' flushes
        without a contribution, until all have come.  Averages are then those of the ranks that
        still push, and an optimizer's numbers theirs: a rank that answers takes them over.  All
        leave with the same values.

        Only push, pull, pushpull, wait, group and local verbs may be called inside.  Ranks that are
        still in the block must make the same of these calls; what they push is flushed by the next
        pull, wait or end of a group, or by another push of the key, after an exchange between the
        hosts.  What a rank has pushed and not flushed when it comes to the end counts in the
        others' next flush, whatever they have pushed since.  An exception that leaves the block on
        one rank breaks the store.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> def work():
        ...     with ncclkv.create("threads") as kv:
        ...         kv.init("mean", np.zeros(2), op="avg")
        ...         with kv.uneven():
        ...             for batch in range(2 + kv.rank):
        ...                 kv.push("mean", np.full(2, 1.0 + batch + kv.rank))
        ...                 kv.wait()
        ...         return kv.pull("mean")
        >>> ncclkv.testing.run_ranks(2, work)
        [array([4., 4.]), array([4., 4.])]
        """
        presence = self._engine.presence
        with self._session.verb("uneven"):
            self._operations.note("uneven")
            self._engine.flush()
            presence.uneven, self._session.inside = True, IN_UNEVEN
        try:
            with self._operations.quietly():
                yield
            with self._session.verb("uneven", allowed_inside=(IN_UNEVEN,)):
                self._engine.answer()
        except BaseException as error:
            self._session.broken_off("uneven", error)
            raise
        finally:
            presence.uneven, self._session.inside = False, ""
        self._raise_late()
