"""Arrays of a list of keys: gradients to push, and outs to pull into."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from bench.data import Expected, addend
from bench.job import Job
from bench.models import Shapes
from ncclkv.comm.types import Buffer


class Workload:
    """Keys with an array of gradients and an array of results for each.

    Attributes
    ----------
    names : list of str
    gradients, outs : list of ndarray
        Arrays allocated one by one, as a user's are.
    nbytes : int
        Bytes of the gradients.
    """

    def __init__(self, job: Job, shapes: Shapes) -> None:
        self.job = job
        self.shapes = list(shapes.values())
        self.names = list(shapes)
        self.gradients = [job.memory.empty(shape) for shape in self.shapes]
        self.outs = [job.memory.empty(shape) for shape in self.shapes]
        self.nbytes = sum(array.nbytes for array in self.gradients)

    def fill(self, step: int, arrays: Sequence[Buffer] | None = None) -> None:
        """Write this rank's data of a step into the gradients, or into other arrays."""
        rank = self.job.comm.rank
        for key, array in enumerate(self.gradients if arrays is None else arrays):
            # Elements of different keys begin at different offsets of the pattern.
            self.job.pattern.fill(array, addend(rank, step, key), start=key)

    def wrong(self, arrays: Sequence[Buffer], expected: Expected) -> int:
        """Return the count of elements of `arrays` that differ from the expected values."""
        return sum(
            self.job.pattern.wrong(array, *expected.of(key), start=key)
            for key, array in enumerate(arrays)
        )

    def overwrite_outs(self) -> None:
        """Write NaN into the outs: elements that no pull writes are then found."""
        for out in self.outs:
            out.fill(np.nan)

    def views(self, flat: Buffer) -> list[Buffer]:
        """Return a view of each key's slot in a flat array, in key order."""
        ends = accumulate((math.prod(shape) for shape in self.shapes), initial=0)
        ranges = pairwise(ends)
        return [
            flat[lo:hi].reshape(shape) for (lo, hi), shape in zip(ranges, self.shapes, strict=True)
        ]

    def buckets(self, nbytes: int) -> list[tuple[int, int]]:
        """Return ranges of keys of up to `nbytes` bytes; a longer key is alone."""
        ranges, first, filled = [], 0, 0
        for key, array in enumerate(self.gradients):
            if filled and filled + array.nbytes > nbytes:
                ranges.append((first, key))
                first, filled = key, 0
            filled += array.nbytes
        return [*ranges, (first, len(self.gradients))]
