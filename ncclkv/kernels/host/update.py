"""Updates of weights by a sum: an assignment, or a step of an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ncclkv.kernels.base import Array, Arrays, Measured, Segments
from ncclkv.kernels.host import compiled
from ncclkv.kernels.host.chunks import ranges, scratch
from ncclkv.kernels.host.measure import adapted
from ncclkv.kernels.host.pack import move

if TYPE_CHECKING:
    from ncclkv.kernels.programs import Program


def assign(total: Array, weights: Array, skip: Array) -> None:
    """Copy `total` into `weights`, unless ``skip[0]`` is not 0."""
    if not skip[0]:
        move(weights, total, total.nbytes)


def update(
    program: str,
    weights: Array,
    gradients: Array,
    states: Arrays,
    scalars: Array,
    segments: Segments,
    skip: Array | None = None,
    master: Array | None = None,
    measured: Measured | None = None,
) -> None:
    """Update `weights` and `states` in place, in C if possible, else in NumPy.

    Parameters as of `ncclkv.kernels.base.Kernels.update`.
    """
    if skip is not None and skip[0]:
        return
    if measured is not None:
        scalars = adapted(program, scalars, measured)
    if compiled.active:
        both = weights, gradients
        if weights.dtype.kind == "V":  # else without a call, which costs as much as a short update
            both = compiled.words(weights), compiled.words(gradients)
        if compiled.update(program, *both, states, scalars, segments.bounds, master):
            return
    from ncclkv.kernels.programs import PROGRAMS  # C needs none of its modules

    arithmetic = PROGRAMS[program]
    # Python floats: with its own float64 scalars NumPy 2 would compute in float64.
    for (lo, hi), row in zip(pairwise(segments.bounds.tolist()), scalars.tolist(), strict=True):
        parts = [state[lo:hi] for state in states]
        wide = None if master is None else master[lo:hi]
        _update_range(arithmetic, weights[lo:hi], gradients[lo:hi], parts, row, wide)


def _update_range(
    program: Program,
    weights: Array,
    gradients: Array,
    states: Arrays,
    row: Sequence[float],
    master: Array | None,
) -> None:
    """Update one segment chunk by chunk; 16-bit weights and gradients are widened first."""
    rows = scratch(1 + program.scratch, weights.size, weights.dtype)
    with np.errstate(all="ignore"):
        for chunk in ranges(weights.size, rows.shape[1]):
            stored, given = weights[chunk], gradients[chunk]
            parts = [state[chunk] for state in states]
            widened, free = rows[0, : stored.size], rows[1:, : stored.size]
            if stored.dtype == widened.dtype:
                program.step(stored, given, parts, free, row)
                continue
            if master is None:
                np.copyto(widened, stored)
            else:
                widened = master[chunk]
            np.copyto(free[0], given)
            program.step(widened, free[0], parts, free, row)
            np.copyto(stored, widened, casting="same_kind")
