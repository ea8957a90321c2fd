"""`Reader`: waits for buckets and copies values out; `to_host`: copies an array to host memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.arrays.torch import mark_written
from ncclkv.comm.base import Communicator
from ncclkv.engine.batch import Pull, plan_pull, select
from ncclkv.engine.bucket_state import Array, BucketState
from ncclkv.engine.capture import Recorder
from ncclkv.engine.layout import Layout
from ncclkv.table.registry import Key


def to_host(array: Array, comm: Communicator) -> Array:
    """Return a copy, in host memory, of an array in the kernels' memory.

    A plain copy would wait for the device without a deadline, and hide NCCL's errors.
    """
    on_host = np.empty(array.shape, array.dtype)
    comm.synchronize()
    comm.kernels.unpack(array, on_host)
    return on_host


class Reader:
    """Reads the values of one store on one rank.

    Attributes
    ----------
    kernels : Kernels
        The kernels that copy.
    recorder : Recorder or None
        Records the reads of a capture.
    """

    def __init__(self, comm: Communicator, layout: Layout) -> None:
        self.kernels = comm.kernels
        self.recorder: Recorder | None = None
        self._comm = comm
        self._layout = layout

    def plan(self, reads: Sequence[tuple[Key, Array]]) -> tuple[Pull, list[Array]]:
        """Sort arrays to be written by bucket, as `plan_pull`."""
        return plan_pull(reads, self._source)

    def _source(self, key: Key) -> tuple[BucketState | None, Array]:
        """Return a key's bucket and its flat value; the bucket is None until the key has a slot."""
        if key not in self._layout:
            return None, self._layout.pending[key].reshape(-1)
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
            # A copy to the host would wait for the device without a deadline: wait here first.
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
        # An array given for several keys takes the last key's value.  So a bucket may have no part
        # in the copies, and still its collectives must be complete.
        for state in pull.states:
            if state.in_flight.works:
                state.in_flight.complete()
