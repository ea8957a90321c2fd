"""NaN and infinity where no host looks: a device finds them, and leaves its updates out.

At a flush a flag is raised where a gradient is nonfinite, the ranks' flags are reduced, and every
update of the flush reads the result when it is made.  The hosts hear of it when they next wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ncclkv.comm.base import Communicator
from ncclkv.engine.bucket_state import Array, BucketState
from ncclkv.engine.flush_agreement import FlushAgreement
from ncclkv.engine.layout import Layout
from ncclkv.kernels.base import Kernels
from ncclkv.table import plan

_NUMBER = np.dtype(np.int32)


class DeviceNonfiniteCheck:
    """The flags of one store.

    Parameters
    ----------
    comm : Communicator
    layout : Layout
    kernels : Kernels

    Attributes
    ----------
    skip : ndarray of int32, shape (1,)
        Not 0 when the flush that is under way comes to nothing.
    """

    def __init__(self, comm: Communicator, layout: Layout, kernels: Kernels) -> None:
        self.skip = kernels.zeros(1, _NUMBER)
        self._comm = comm
        self._layout = layout
        self._kernels = kernels
        self._skipped = kernels.zeros(1, _NUMBER)
        self._keys = kernels.zeros(0, _NUMBER)

    def find(self, states: Sequence[BucketState]) -> None:
        """Look at what was pushed into some buckets, on all ranks."""
        kernels, registry = self._kernels, self._layout.registry
        if self._keys.size < len(registry):
            more = kernels.zeros(len(registry), _NUMBER)
            kernels.pack(self._keys, more[: self._keys.size])
            self._keys = more
        kernels.fill(self.skip, 0)
        for state in states:
            for span in plan.spans(state.bucket, state.pushed):
                kernels.find_nonfinite(state.span(span).gradients, self.skip)
            for key in state.pushed:
                index = registry[key].index
                flag = self._keys[index : index + 1]
                kernels.find_nonfinite(self._layout[key].gradient, flag)
        work = self._comm.allreduce(self.skip, self.skip, "max")
        work.label = "whether NaN or infinity was pushed"
        work.wait()
        kernels.reduce([self._skipped, self.skip], self._skipped, "sum")

    def report(self, presence: FlushAgreement) -> None:
        """Tell of what was found since the last report; the host has waited for all of it."""
        if not self._keys.size or not (skipped := self._read(self._skipped)[0]):
            return
        own = frozenset(np.flatnonzero(self._read(self._keys)).tolist())
        nonfinite = self._comm.control.allgather(own, "where NaN or infinity was pushed")
        for flags in self._skipped, self._keys:
            self._kernels.fill(flags, 0)
        presence.tell(nonfinite, int(skipped))

    def _read(self, flags: Array) -> Any:
        """Flags, in host memory."""
        on_host = np.empty(flags.size, _NUMBER)
        self._kernels.unpack(flags, on_host)
        return on_host
