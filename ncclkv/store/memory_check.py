"""MemoryCheck: refuses new keys for which the machine has no memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ncclkv.comm.base import Communicator
from ncclkv.comm.types import ALIGNMENT
from ncclkv.engine.bucket_state import SHARED_FROM_BYTES
from ncclkv.engine.layout import Layout
from ncclkv.errors import OutOfMemory
from ncclkv.kernels.host import HostKernels
from ncclkv.store.session import Checks
from ncclkv.system.memory import room
from ncclkv.table.bucket import place
from ncclkv.table.registry import KeySpec

LOOK_BYTES = 16 * 1024 * 1024
"""Bytes of new host keys after which the memory left is looked up again."""


class MemoryCheck:
    """Compares the memory that new keys need with the memory left, on all ranks.

    On hosts, Linux kills a process that exceeds the limit, without an error.  On GPUs, an
    allocation may fail on one rank alone.  Here all ranks refuse the keys together, and no store
    breaks.

    Parameters
    ----------
    comm : Communicator
    layout : Layout
    checks : Checks
        Gets each refusal, which breaks no store because all ranks refuse.
    """

    def __init__(self, comm: Communicator, layout: Layout, checks: Checks) -> None:
        self._comm = comm
        self._layout = layout
        self._checks = checks
        self._unseen = 0

    def check(self, verb: str, specs: Sequence[KeySpec]) -> None:
        """Refuse new keys that do not fit; collective, with the same keys on all ranks.

        Raises
        ------
        OutOfMemory
            On every rank, when a rank's node or GPU has not the memory.
        """
        if not isinstance(self._comm.kernels, HostKernels):
            self._check_gpus(verb, specs)
            return
        self._unseen += sum(spec.nbytes for spec in specs)
        if self._unseen < LOOK_BYTES:
            return
        self._unseen = 0
        votes = self._comm.control.allgather(self._shortfall(specs), f"room for {verb}")
        for rank, lack in enumerate(votes):
            if lack:
                self._refuse(f"{verb}: on the node of rank {rank}, {lack}")

    def _refuse(self, text: str) -> NoReturn:
        """Raise the error that all ranks raise."""
        error = OutOfMemory(text)
        self._checks.failed(error)
        raise error

    def _check_gpus(self, verb: str, specs: Sequence[KeySpec]) -> None:
        """Compare what new keys take with what each rank's GPU has left; collective."""
        if not specs:
            return
        new, waiting = _padded(specs), self._layout.pending_bytes
        # The values from rank 0; the gradients and weights of all keys that have no bucket.
        needed = new + 2 * (new + waiting)
        left, lack = self._comm.kernels.left(), ""
        if left is not None and left < needed:
            lack = (
                f"they need {needed:,} bytes"
                f"{', earlier keys without a bucket included,' if waiting else ','} and "
                f"its GPU has {left:,} left"
            )
        votes = self._comm.control.allgather(lack, f"room for {verb}")
        for rank, lack in enumerate(votes):
            if lack:
                self._refuse(
                    f"{verb}: {len(specs)} new keys of {new:,} bytes, with gradients and weights, "
                    f"do not fit on rank {rank}: {lack}; keep less there, or use more GPUs"
                )

    def _shortfall(self, specs: Sequence[KeySpec]) -> str:
        """Return what this rank's node lacks; empty if it lacks nothing, or if that is unknown."""
        left = room()
        if left is None:
            return ""
        ranks = self._comm.local_size
        common = self._layout.share_weights and self._comm.node_shared(0) is not None
        new = _padded(specs)
        # Keys without a place hold memory for their first values, which becomes their gradients'.
        gradients, waiting = ranks * new, self._layout.pending_bytes
        each = new + waiting
        weights = each + (ranks - 1) * (self._unshared(specs) if common else each)
        if gradients + weights <= left.nbytes:
            return ""
        return (
            f"the buckets of {len(specs)} new keys need {gradients + weights:,} bytes "
            f"({gradients:,} for the gradients of {ranks} ranks, {weights:,} for "
            f"{'weights in common' if weights < ranks * each else 'the weights of each'}"
            f"{', earlier keys without a bucket included' if waiting else ''}), and "
            f"{left.nbytes:,} are left by {left.source}; give the node more memory, or fewer ranks"
        )

    def _unshared(self, specs: Sequence[KeySpec]) -> int:
        """Return the bytes of new keys in buckets that are too small for shared weights."""
        buckets = place(specs, self._layout.sizing.bucket_bytes, 0)
        return sum(each.nbytes for each in buckets if each.nbytes < SHARED_FROM_BYTES)


def _padded(specs: Sequence[KeySpec]) -> int:
    """Return the bytes of keys in a bucket, padding included."""
    return sum(-(-spec.nbytes // ALIGNMENT) * ALIGNMENT for spec in specs)
