"""All mutants, by the part of the GPU path that they are in."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.planted import arrays, collectives, flight, kernels, streams, trouble

MUTANTS: tuple[Mutant, ...] = (
    *flight.MUTANTS,
    *streams.MUTANTS,
    *collectives.MUTANTS,
    *trouble.MUTANTS,
    *kernels.MUTANTS,
    *arrays.MUTANTS,
)
