"""Ranges of a bucket with factors of their own for the learning rate and the weight decay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.device.kernel_args import (
    PIECES,
    SGD_ELEMENTS,
    STEPS,
    batches,
    first_blocks,
    new,
)


class SegmentTable:
    """Segments that follow one another, to be updated together.

    Parameters
    ----------
    offsets : sequence of int, length n + 1
        Segment i is elements ``[offsets[i], offsets[i + 1])``.
    lr_mult, wd_mult : sequence of float, length n
        What multiplies the learning rate and the weight decay in each.

    Attributes
    ----------
    launches : list of (int, ndarray)
        Blocks and argument of each launch of ``sgd``; the fields that `DeviceKernels.sgd_segments`
        has to fill are zero.

    Examples
    --------
    >>> table = SegmentTable([0, 10000, 10064], lr_mult=[1.0, 0.5], wd_mult=[1.0, 0.0])
    >>> [blocks for blocks, _ in table.launches]
    [3]
    """

    def __init__(
        self, offsets: Sequence[int], lr_mult: Sequence[float], wd_mult: Sequence[float]
    ) -> None:
        bounds = np.asarray(offsets, np.int64)
        sizes = np.diff(bounds)
        self.launches = []
        for batch in batches(len(sizes), PIECES):
            count = batch.stop - batch.start
            first = first_blocks(sizes[batch], SGD_ELEMENTS)
            argument = new(STEPS)
            argument["start"][: count + 1] = bounds[batch.start : batch.stop + 1]
            argument["lr_mult"][:count] = lr_mult[batch]
            argument["wd_mult"][:count] = wd_mult[batch]
            argument["first"][: count + 1] = first
            argument["count"] = count
            self.launches.append((int(first[-1]), argument))
