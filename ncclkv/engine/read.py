"""Values as they are read: copied out of their buckets, once what flies there is complete."""

from __future__ import annotations

from collections.abc import Sequence

from ncclkv.arrays.torch import mark_written
from ncclkv.comm.base import Communicator
from ncclkv.engine.batch import Pull, plan_pull, select
from ncclkv.engine.bucket_state import Array, BucketState
from ncclkv.engine.capture import Recording
from ncclkv.engine.layout import Layout
from ncclkv.kernels.base import Kernels
from ncclkv.table.registry import Key


class Reads:
    """The values of one store on one rank, to be read.

    Attributes
    ----------
    layout : Layout
        The keys and where their values are.
    kernels : Kernels
        The arithmetic of the memory that values are in.
    recording : Recording or None
        What the calls are part of, when they are captured and not done.
    """

    def __init__(self, comm: Communicator, kernels: Kernels, layout: Layout) -> None:
        self.layout = layout
        self.kernels = kernels
        self.recording: Recording | None = None
        self._comm = comm

    def _take_up(self, state: BucketState) -> None:
        """Wait for what was launched in a bucket that a call is about to write or to read."""
        if self.recording is not None:
            self.recording.include(state)
        state.in_flight.complete()

    def keep(self, arrays: Sequence[Array]) -> None:
        """Let arrays live until what reads them now is over."""
        self._comm.keep_alive(*arrays)

    def plan_pull(self, reads: Sequence[tuple[Key, Array]]) -> tuple[Pull, list[Array]]:
        """Sort what is to be read; return the arrays to be written in a row, too.

        One that stands for several keys gets the last one's value.
        """
        return plan_pull(reads, self._source)

    def _source(self, key: Key) -> tuple[BucketState | None, Array]:
        """The bucket of a key and its flat value there; without a bucket, where it has no place."""
        if key not in self.layout:
            return None, self.layout.pending(key).reshape(-1)
        slot = self.layout[key]
        return slot.state, slot.weight

    def read(self, pull: Pull, row: Sequence[Array]) -> None:
        """Copy values, as of the last flush, into arrays."""
        for state in pull.states:
            self._take_up(state)
        if pull.to_host:
            self._comm.synchronize()
        if pull.tensors:
            mark_written(pull.tensors)
        for part in pull.parts:
            outs = select(row, part.indices)
            part.table = self.kernels.unpack_all(part.sources, outs, part.table)

    def current(self, key: Key) -> Array:
        """A key's value as of the last flush, of the key's shape; not to be written."""
        if key not in self.layout:
            return self.layout.pending(key)
        slot = self.layout[key]
        self._take_up(slot.state)
        return slot.weight_view
