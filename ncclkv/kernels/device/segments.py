"""Segments: the launches that update ranges of a bucket."""

from __future__ import annotations

import numpy as np

from ncclkv.kernels.base import Segments
from ncclkv.kernels.device.kernel_args import (
    UPDATED_ELEMENTS,
    UPDATES,
    PlannedLaunch,
    plan_launches,
)


def plan_updates(segments: Segments) -> list[PlannedLaunch]:
    """Plan the launches that update segments, without the addresses of an update.

    Examples
    --------
    >>> launches = plan_updates(Segments(np.array([0, 10000, 10064])))
    >>> [launch.blocks for launch in launches]
    [3]
    """
    bounds = segments.bounds
    launches = plan_launches(UPDATES, np.diff(bounds), UPDATED_ELEMENTS)
    for _, argument, pieces in launches:
        argument["start"][: argument["count"] + 1] = bounds[pieces.start : pieces.stop + 1]
    return launches
