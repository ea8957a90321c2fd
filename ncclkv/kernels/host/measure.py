"""Sums of squares, by which optimizers adapt learning rates and clip gradients.

The squares are added in float64 and in one order, in C as in NumPy.  A segment is cut into blocks
from its first element on.  A block has `LANES` partial sums: element i belongs to partial sum i
modulo `LANES`.  The partial sums are added in order, and so are the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ncclkv.kernels.base import Array, Arrays, Measured, Segments
from ncclkv.kernels.host import compiled
from ncclkv.kernels.host.chunks import ranges, scratch

if TYPE_CHECKING:
    from ncclkv.kernels.programs import Program

BLOCK = 1024
"""Count of elements of a block."""

LANES = 16
"""Count of partial sums of a block."""


def adapted(program: str, rows: Array, measured: Measured) -> Array:
    """Return rows in which sums of squares have changed the learning rate and the rescaling."""
    from ncclkv.kernels.programs import PROGRAMS
    from ncclkv.kernels.programs.gradient import global_scale

    rows = rows.copy()
    with np.errstate(all="ignore"):
        if measured.total is not None:
            rows[:, -2] *= global_scale(measured.total, rows[:, -2])
        norms = PROGRAMS[program].norms
        if measured.sums is not None and norms is not None:
            rows[:, 0] *= norms.trust(rows, measured.sums)
    return rows


def measure(
    program: str,
    weights: Array,
    gradients: Array,
    states: Arrays,
    scalars: Array,
    segments: Segments,
    sums: Array,
    memory: Array,
    skip: Array | None = None,
    master: Array | None = None,
    measured: Measured | None = None,
) -> None:
    """Add a program's sums of squares to `sums`, in C if possible, else in NumPy.

    Parameters as of `ncclkv.kernels.base.Kernels.measure`.
    """
    if skip is not None and skip[0]:
        return
    if measured is not None:
        scalars = adapted(program, scalars, measured)
    if compiled.active:
        both = weights, gradients
        if weights.dtype.kind == "V":  # else without a call, which costs as much as a short update
            both = compiled.words(weights), compiled.words(gradients)
        if compiled.measure(program, *both, states, scalars, segments.bounds, sums, master):
            return
    from ncclkv.kernels.programs import PROGRAMS  # C needs none of its modules

    found = enumerate(zip(pairwise(segments.bounds.tolist()), scalars.tolist(), strict=True))
    for index, ((lo, hi), row) in found:
        parts = [state[lo:hi] for state in states]
        wide = weights[lo:hi] if master is None else master[lo:hi]
        _measure_range(PROGRAMS[program], wide, gradients[lo:hi], parts, row, sums[index])


def _measure_range(
    program: Program,
    weights: Array,
    gradients: Array,
    states: Arrays,
    row: Sequence[float],
    sums: Array,
) -> None:
    """Measure one segment chunk by chunk; 16-bit weights and gradients are widened first."""
    norms = program.norms
    if norms is None:
        raise ValueError(f"program {program.name} has no norms")
    rows = scratch(2 + program.scratch, weights.size, gradients.dtype)
    with np.errstate(all="ignore"):
        # A multiple of the blocks: they are those of the whole segment.
        for chunk in ranges(weights.size, max(BLOCK, rows.shape[1] // BLOCK * BLOCK)):
            stored, given = weights[chunk], gradients[chunk]
            parts = [state[chunk] for state in states]
            wide = [
                _widened(x, out[: x.size]) for x, out in zip((stored, given), rows, strict=False)
            ]
            free = rows[2:, : stored.size]
            for k, values in enumerate(norms.measure(wide[0], wide[1], parts, free, row)):
                _add_squares(values, sums[k : k + 1])


def _widened(values: Array, out: Array) -> Array:
    """Return values in the dtype of `out`: themselves, or a copy there."""
    if values.dtype == out.dtype:
        return values
    np.copyto(out, values)
    return out


def _add_squares(values: Array, total: Array) -> None:
    """Add the squares of a chunk, block by block, to ``total[0]``."""
    blocks = -(-values.size // BLOCK)
    wide = np.zeros((blocks, BLOCK // LANES, LANES))
    flat = wide.reshape(-1)[: values.size]
    np.copyto(flat, values)
    np.multiply(flat, flat, out=flat)
    # NumPy adds along an axis that is not the last in order, and along the last in pairs.
    lanes = np.add.reduce(wide, axis=1)
    found = lanes[:, 0].copy()
    for lane in lanes.T[1:]:
        found += lane
    for block in found:
        total += block
