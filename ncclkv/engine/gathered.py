"""`Gathered`: short ranges of a bucket, copied into one array that one collective reduces.

A collective of a few bytes takes as long as a copy of 64 KiB.  A push of every second key would
make one for each key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from ncclkv.comm.base import Communicator
from ncclkv.comm.destinations import To
from ncclkv.comm.types import Apply, Buffer
from ncclkv.engine.reduction import Span

MIN_SPANS = 8
MAX_SPAN_BYTES = 16 * 1024
"""Least count of ranges that are gathered, and length of the longest of them."""

Target = tuple[Buffer, "Apply | None"]


class Gathered:
    """Ranges of a bucket in host memory, in one array.

    Parameters
    ----------
    spans : sequence of Span
        In the order of their elements.
    to : To
        The destination of sums of the whole bucket.
    comm : Communicator

    Attributes
    ----------
    spans
        As the parameter.
    whole : Span
        The array, as a span whose sums go to the ranks that the ranges go to.
    """

    def __init__(self, spans: Sequence[Span], to: To, comm: Communicator) -> None:
        first = spans[0]
        self.spans = spans
        self._starts = [0, *accumulate(span.hi - span.lo for span in spans)]
        count, dtype = self._starts[-1], first.gradients.dtype
        memory = comm.allocate(count * dtype.itemsize).view(dtype)
        self._copies = [memory[lo:hi] for lo, hi in pairwise(self._starts)]
        label = f"{first.label} and {len(spans) - 1} more ranges"
        moved = to.placed(self._place)
        self.whole = Span(0, count, memory, memory, label, moved, first.node_shared)
        self.whole.bucket, self.whole.ranges = first.bucket, [(each.lo, each.hi) for each in spans]

    def _place(self, element: int) -> int:
        """Return the count of gathered elements before an element of the bucket."""
        index = bisect_right(self.spans, element, key=lambda span: span.lo) - 1
        if index < 0:
            return 0
        span = self.spans[index]
        return self._starts[index] + min(element, span.hi) - span.lo

    def fill(self) -> None:
        """Copy the gradients of the ranges into the array."""
        for copy, span in zip(self._copies, self.spans, strict=True):
            copy[...] = span.gradients

    def target(self, targets: Sequence[Target], *, updates: bool) -> Target:
        """Return the array that receives the sums, and the function that passes them on.

        Parameters
        ----------
        targets : sequence of (ndarray, callable or None)
            The arrays of the ranges that receive their sums, and their updates.
        updates : bool
            Whether this rank receives sums.
        """
        starts, copies = self._starts, self._copies

        def apply(lo: int, hi: int) -> None:
            """Copy sums to the ranges that they belong to, and make the updates of these."""
            for index in range(bisect_right(starts, lo) - 1, bisect_left(starts, hi)):
                begin, copy = starts[index], copies[index]
                low, high = max(lo - begin, 0), min(hi - begin, copy.size)
                receive, update = targets[index]
                receive[low:high] = copy[low:high]
                if update is not None:
                    update(low, high)

        return self.whole.gradients, apply if updates else None
