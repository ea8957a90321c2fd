"""All mutants, by the part of the package that they are in."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.planted import (
    arrays,
    checkpoints,
    collectives,
    compression,
    encoded_sums,
    engine,
    events,
    flight,
    hosts,
    kernels,
    norms,
    observing,
    streams,
    training,
    trouble,
    worlds,
    worlds_of_streams,
)

MUTANTS: tuple[Mutant, ...] = (
    *flight.MUTANTS,
    *streams.MUTANTS,
    *collectives.MUTANTS,
    *trouble.MUTANTS,
    *kernels.MUTANTS,
    *arrays.MUTANTS,
    *engine.MUTANTS,
    *events.MUTANTS,
    *observing.MUTANTS,
    *checkpoints.MUTANTS,
    *compression.MUTANTS,
    *encoded_sums.MUTANTS,
    *hosts.MUTANTS,
    *training.MUTANTS,
    *norms.MUTANTS,
    *worlds.MUTANTS,
    *worlds_of_streams.MUTANTS,
)
