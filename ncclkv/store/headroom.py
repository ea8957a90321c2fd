"""Whether the machine has the memory that new keys are going to need."""

from __future__ import annotations

from collections.abc import Sequence

from ncclkv.comm.base import ALIGNMENT, Communicator
from ncclkv.comm.room import room
from ncclkv.engine.places import Places
from ncclkv.errors import OutOfMemory
from ncclkv.kernels.host import HostKernels
from ncclkv.table.registry import KeySpec

LOOK_BYTES = 16 * 1024 * 1024
"""Keys may grow by so much before anybody looks again."""


class Headroom:
    """Looks at what is left before keys are added, for a limit of memory ends a job without a word.

    Nobody looks for the sake of a GPU's memory, whose own errors tell.
    """

    def __init__(self, comm: Communicator, places: Places) -> None:
        self._comm = comm
        self._places = places
        self._unseen = 0

    def check(self, verb: str, specs: Sequence[KeySpec]) -> None:
        """Refuse new keys that do not fit; collective, with the same keys on all ranks.

        Raises
        ------
        OutOfMemory
            On every rank, when one rank's node has not the room.
        """
        self._unseen += sum(spec.nbytes for spec in specs)
        if self._unseen < LOOK_BYTES or not isinstance(self._comm.kernels, HostKernels):
            return
        self._unseen = 0
        votes = self._comm.control.allgather(self._lack(specs), f"room for {verb}")
        for rank, lack in enumerate(votes):
            if lack:
                raise OutOfMemory(f"{verb}: on the node of rank {rank}, {lack}")

    def _lack(self, specs: Sequence[KeySpec]) -> str:
        """What this rank's node has not the room for; empty when it has, or nobody knows."""
        left = room()
        if left is None:
            return ""
        ranks = self._comm.local_size
        common = self._places.common and self._comm.common(0) is not None
        new = sum(-(-spec.nbytes // ALIGNMENT) * ALIGNMENT for spec in specs)
        # Keys without a place hold memory for their first values, which becomes their gradients'.
        gradients, waiting = ranks * new, self._places.waiting
        weights = (1 if common else ranks) * (new + waiting)
        if gradients + weights <= left.nbytes:
            return ""
        return (
            f"the buckets of {len(specs)} new keys need {gradients + weights:,} bytes "
            f"({gradients:,} for the gradients of {ranks} ranks, {weights:,} for "
            f"{'weights in common' if common else 'the weights of each'}"
            f"{', earlier keys without a bucket included' if waiting else ''}), and "
            f"{left.nbytes:,} are left by {left.source}; give the node more memory, or fewer ranks"
        )
