"""`Reader`: copies values out of their buckets, once the collectives in flight there are done."""

from __future__ import annotations

from collections.abc import Sequence

from ncclkv.arrays.torch import mark_written
from ncclkv.comm.base import Communicator
from ncclkv.engine.batch import Pull, plan_pull, select
from ncclkv.engine.bucket_state import Array, BucketState
from ncclkv.engine.capture import Recorder
from ncclkv.engine.layout import Layout
from ncclkv.kernels.base import Kernels
from ncclkv.table.registry import Key


class Reader:
    """Reads the values of one store on one rank.

    Attributes
    ----------
    kernels : Kernels
        The kernels that copy.
    recorder : Recorder or None
        As of `Engine`.
    """

    def __init__(self, comm: Communicator, layout: Layout, kernels: Kernels) -> None:
        self.kernels = kernels
        self.recorder: Recorder | None = None
        self._comm = comm
        self._layout = layout

    def plan(self, reads: Sequence[tuple[Key, Array]]) -> tuple[Pull, list[Array]]:
        """Sort arrays to be written by bucket, as `plan_pull`."""
        return plan_pull(reads, self._source)

    def _source(self, key: Key) -> tuple[BucketState | None, Array]:
        """Return the bucket of a key, or None before it has one, and the key's flat value."""
        if key not in self._layout:
            return None, self._layout.pending(key).reshape(-1)
        slot = self._layout[key]
        return slot.state, slot.weight

    def copy_out(self, pull: Pull, outs: Sequence[Array]) -> None:
        """Copy values, as of the last flush, into `outs`: each bucket as soon as it is complete."""
        if self.recorder is not None:
            for state in pull.states:
                self.recorder.include(state)
        if pull.tensors:
            mark_written(pull.tensors)
        if pull.to_host and not self._comm.blocks:
            # The host reads device memory: all streams first, under the deadline.
            for state in pull.states:
                state.in_flight.complete()
            self._comm.synchronize()
        for part in pull.parts:
            source = part.state
            if source is not None and source.in_flight.works:
                source.in_flight.complete()
            indices = part.indices
            selected = outs if len(indices) == len(outs) else select(outs, indices)
            part.table = self.kernels.unpack_all(part.sources, selected, part.table)
        # Buckets of keys whose array receives the value of a later key have no part.
        for state in pull.states:
            if state.in_flight.works:
                state.in_flight.complete()

    def current(self, key: Key) -> Array:
        """Return a key's value in the key's shape, once its bucket is complete; read-only."""
        if key not in self._layout:
            return self._layout.pending(key)
        return self._layout[key].weight_view
