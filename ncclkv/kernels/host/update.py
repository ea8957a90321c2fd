"""Updates of weights by a sum: an assignment, or a step of an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ncclkv.kernels.base import Array, Segments
from ncclkv.kernels.host import compiled
from ncclkv.kernels.host.chunks import chunk_length, ranges, working_dtype
from ncclkv.kernels.host.memory import move
from ncclkv.kernels.programs import PROGRAMS, Program


def assign(total: Array, weights: Array, skip: Array) -> None:
    """Copy `total` into `weights`, unless ``skip[0]`` is not 0."""
    if not skip[0]:
        move(weights, total, total.nbytes)


def update(
    program: str,
    weights: Array,
    gradients: Array,
    states: Sequence[Array],
    scalars: Array,
    segments: Segments,
    skip: Array | None = None,
) -> None:
    """Update `weights` and `states` in place, in C if possible, else in NumPy.

    Parameters as of `ncclkv.kernels.base.Kernels.update`.
    """
    if skip is not None and skip[0]:
        return
    # Checked here, because the buffer protocol has no format for bfloat16.
    in_c = compiled.active and weights.dtype in compiled.REAL
    if in_c and compiled.update(program, weights, gradients, states, scalars, segments.bounds):
        return
    arithmetic = PROGRAMS[program]
    # Python floats: with its own float64 scalars NumPy 2 would compute in float64.
    for (lo, hi), row in zip(pairwise(segments.bounds.tolist()), scalars.tolist(), strict=True):
        _update_range(
            arithmetic, weights[lo:hi], gradients[lo:hi], [state[lo:hi] for state in states], row
        )


def _update_range(
    program: Program,
    weights: Array,
    gradients: Array,
    states: Sequence[Array],
    row: Sequence[float],
) -> None:
    """Update one segment chunk by chunk."""
    working = working_dtype(weights.dtype)
    length = chunk_length(working)
    scratch = np.empty((1 + program.scratch, min(length, weights.size)), working)
    with np.errstate(all="ignore"):
        for chunk in ranges(weights.size, length):
            _update_chunk(
                program,
                weights[chunk],
                gradients[chunk],
                [state[chunk] for state in states],
                scratch[:, : chunk.stop - chunk.start],
                row,
            )


def _update_chunk(
    program: Program,
    stored: Array,
    gradients: Array,
    states: Sequence[Array],
    scratch: Array,
    row: Sequence[float],
) -> None:
    """Update one chunk, whose 16-bit weights and gradients are widened in `scratch`."""
    widened, scratch = scratch[0], scratch[1:]
    if stored.dtype == widened.dtype:
        program.step(stored, gradients, states, scratch, row)
        return
    np.copyto(widened, stored)
    np.copyto(scratch[0], gradients)
    program.step(widened, scratch[0], states, scratch, row)
    np.copyto(stored, widened, casting="same_kind")
