"""Launches that update the segments of a bucket."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncclkv.kernels.base import Segments
from ncclkv.kernels.device.kernel_args import (
    PIECES,
    UPDATED_ELEMENTS,
    UPDATES,
    batches,
    first_blocks,
    new,
)


class SegmentLaunch(NamedTuple):
    """One launch of ``update.cu``.

    Attributes
    ----------
    blocks : int
    argument : ndarray of dtype `UPDATES`
        Without the addresses, which differ from update to update.
    row : int
        The row of scalars of its first segment.
    """

    blocks: int
    argument: NDArray[Any]
    row: int


def plan_updates(segments: Segments) -> list[SegmentLaunch]:
    """Lay out the launches that update some segments, one for 128 of them.

    Examples
    --------
    >>> launches = plan_updates(Segments(np.array([0, 10000, 10064])))
    >>> [launch.blocks for launch in launches]
    [3]
    """
    bounds = segments.bounds
    sizes = np.diff(bounds)
    launches = []
    for batch in batches(len(sizes), PIECES):
        count = batch.stop - batch.start
        first = first_blocks(sizes[batch], UPDATED_ELEMENTS)
        argument = new(UPDATES)
        argument["start"][: count + 1] = bounds[batch.start : batch.stop + 1]
        argument["first"][: count + 1] = first
        argument["count"] = count
        launches.append(SegmentLaunch(int(first[-1]), argument, batch.start))
    return launches
