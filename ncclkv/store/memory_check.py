"""MemoryCheck: refuses new keys for which the machine has no memory.

After every 16 MiB of new keys the ranks on hosts read how much memory the machine and its control
groups leave (`ncclkv.system.memory_left`).  On GPUs each ``init`` compares the new keys with what
the GPU and CuPy's pool have left (``Kernels.left``).  If CuPy uses another allocator, the rest is
unknown, and all keys are accepted.  Neither check reserves memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from ncclkv.comm.base import Communicator
from ncclkv.comm.types import ALIGNMENT
from ncclkv.compress.base import Codec
from ncclkv.engine.bucket_state import SHARED_FROM_BYTES
from ncclkv.engine.layout import Layout
from ncclkv.engine.reductions import adds_first
from ncclkv.errors import OutOfMemory
from ncclkv.kernels.host import HostKernels
from ncclkv.store.session import Checks
from ncclkv.system.memory_left import address_space_left, memory_left
from ncclkv.table.registry import KeySpec

RESIDUAL_BYTES = 4
"""Bytes of an element of a residual."""

CHECK_BYTES = 16 * 1024 * 1024
"""Bytes of new host keys after which the memory left is read again."""


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
        self._on_hosts = isinstance(comm.kernels, HostKernels)
        self._slices = min(map(len, comm.nodes or [range(comm.size)]))
        self._unchecked = 0

    def check(self, verb: str, specs: Sequence[KeySpec]) -> None:
        """Refuse new keys that do not fit; collective, with the same keys on all ranks.

        Raises
        ------
        OutOfMemory
            On every rank, when a rank's node or GPU has not the memory.
        """
        if self._on_hosts:
            self._unchecked += sum(spec.nbytes for spec in specs)
            if self._unchecked < CHECK_BYTES:
                return
            self._unchecked = 0
        elif not specs:
            return
        shortfall = self._on_node(specs) if self._on_hosts else self._on_gpu(specs)
        what = f"{len(specs)} new keys of {_padded(specs):,} bytes, with gradients and weights, do"
        self._agree(verb, what, shortfall)

    def check_codec(self, verb: str, specs: Sequence[KeySpec], codec: Codec) -> None:
        """Refuse a codec whose memory does not fit; collective, with the same keys on all ranks.

        Raises
        ------
        OutOfMemory
            On every rank, when a rank's node or GPU has not the memory.
        """
        needed = sum(self._kept(spec, codec) for spec in specs)
        if needed < CHECK_BYTES:
            return
        what = f"what {codec.name} keeps of {len(specs)} keys does"
        self._agree(verb, what, self._without_codec(needed))

    def _agree(self, verb: str, what: str, shortfall: str) -> None:
        """Raise OutOfMemory on every rank if one has a shortfall; collective."""
        shortfalls = self._comm.control.allgather(shortfall, f"memory for {verb}")
        for rank, text in enumerate(shortfalls):
            if text:
                self._checks.raised = OutOfMemory(f"{verb}: {what} not fit on rank {rank}: {text}")
                raise self._checks.raised

    def _without_codec(self, needed: int) -> str:
        """Return the memory that this rank lacks for a codec; empty if it fits, or if unknown."""
        if not self._on_hosts:
            left = self._comm.kernels.left()
            if left is None or needed <= left:
                return ""
            return (
                f"it needs {needed:,} bytes, and its GPU has {left:,} left; keep less there, or "
                f"compress fewer keys"
            )
        on_node, of_node = self._comm.local_size * needed, memory_left()
        if of_node is None or on_node <= of_node.nbytes:
            return ""
        return (
            f"its node needs {on_node:,} bytes, {needed:,} a rank, and {of_node.nbytes:,} are "
            f"left by {of_node.source}; give the node more memory, or compress fewer keys"
        )

    def _on_gpu(self, specs: Sequence[KeySpec]) -> str:
        """Return the memory that this rank's GPU lacks; empty if the keys fit."""
        new, pending = _padded(specs), self._layout.pending_bytes
        # The values from rank 0; the gradients and weights of all keys that have no bucket.
        needed = new + 2 * (new + pending) if self._layout.has_values else new
        needed += self._kept_by_codecs(specs)
        left = self._comm.kernels.left()
        if left is None or needed <= left:
            return ""
        earlier = ", earlier keys without a bucket included," if pending else ","
        return (
            f"they need {needed:,} bytes{earlier} and its GPU has {left:,} left; keep less there, "
            f"or use more GPUs"
        )

    def _on_node(self, specs: Sequence[KeySpec]) -> str:
        """Return the memory that this rank or its node lacks; empty if the keys fit, or if unknown.

        A rank maps the memory of all ranks with which it shares memory.
        """
        ranks = self._comm.local_size
        shares = self._comm.node_shared(0) is not None
        common = shares and self._layout.share_weights
        new, pending = _padded(specs), self._layout.pending_bytes
        # A key without a slot holds memory for its first value, which its gradient gets later.
        gradients, each = ranks * new, new + pending
        weights = each + (ranks - 1) * (self._unshared(specs) if common else each)
        if not self._layout.has_values:
            weights = 0
        kept = self._kept_by_codecs(specs)  # of a rank, in memory that no other rank maps
        mapped = kept + (gradients + weights if shares else new + each)
        needed = gradients + weights + ranks * kept
        earlier = ", earlier keys without a bucket included" if pending else ""
        space, left = address_space_left(), memory_left()
        if space is not None and mapped > space.nbytes:
            return (
                f"in its address space they need {mapped:,} bytes{earlier}, and {space.nbytes:,} "
                f"are left by {space.source}; raise the limit"
            )
        if left is None or needed <= left.nbytes:
            return ""
        compressed = f", {ranks * kept:,} for what compression keeps" if kept else ""
        return (
            f"on its node they need {needed:,} bytes ({gradients:,} for the gradients of {ranks} "
            f"ranks, {weights:,} for "
            f"{'shared weights' if weights < ranks * each else 'the weights of each rank'}"
            f"{compressed}{earlier}), and {left.nbytes:,} are left by {left.source}; give the node "
            f"more memory, or fewer ranks"
        )

    def _kept_by_codecs(self, specs: Sequence[KeySpec]) -> int:
        """Return the bytes that the codecs in force keep of new keys on a rank."""
        codecs = ((spec, self._layout.reductions.codec(spec)) for spec in specs)
        return sum(self._kept(spec, codec) for spec, codec in codecs if codec is not None)

    def _kept(self, spec: KeySpec, codec: Codec) -> int:
        """Return the bytes that a codec keeps of a key on a rank.

        They are those of the residual, and on a GPU those of a slice that is added for a node.
        """
        residual = spec.size * RESIDUAL_BYTES if codec.keeps_residual else 0
        if self._on_hosts or not adds_first(codec):
            return residual
        return residual + -(-spec.nbytes // self._slices)

    def _unshared(self, specs: Sequence[KeySpec]) -> int:
        """Return the bytes of new keys in buckets that are too small for shared weights."""
        buckets = self._layout.buckets_of(specs)
        return sum(each.nbytes for each in buckets if each.nbytes < SHARED_FROM_BYTES)


def _padded(specs: Sequence[KeySpec]) -> int:
    """Return the bytes of keys in a bucket, padding included."""
    return sum(-(-spec.nbytes // ALIGNMENT) * ALIGNMENT for spec in specs)
