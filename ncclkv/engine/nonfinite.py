"""`DeviceCheckedFlush`: flushes whose updates the device skips where a gradient has NaN.

A kernel sets a flag if a gradient is not finite.  The ranks reduce their flags, and each update of
the flush reads the result when it runs.  At their next wait the hosts read the count of skipped
flushes, and raise or log by `NonfiniteReport`.

The exchange of hosts is not needed then.  The hosts read the flags in ``wait``, ``barrier`` and
``close``.  So update counts include the updates that the device skips.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

import numpy as np

from ncclkv.comm.base import Communicator
from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.engine.flush import FlushPolicy
from ncclkv.engine.reducer import Reducer
from ncclkv.engine.storage import StoredBucket
from ncclkv.errors import NonFinite
from ncclkv.table.registry import Registry

_log = logging.getLogger("ncclkv")

_INT32 = np.dtype(np.int32)

_MAX_KEYS = 8
"""Count of keys that an error names; further keys are counted."""


class NonfiniteReport:
    """Raises or logs skipped flushes, as the store's ``nonfinite=`` requests.

    Parameters
    ----------
    comm : Communicator
    registry : Registry
    mode : {"ignore", "raise", "skip_step"}

    Attributes
    ----------
    enabled : bool
        Whether gradients are checked.
    skipped : int
        Count of flushes skipped so far.
    """

    def __init__(self, comm: Communicator, registry: Registry, mode: str) -> None:
        self.enabled = mode != "ignore"
        self.skipped = 0
        self._raises = mode == "raise"
        self._comm = comm
        self._registry = registry

    def skip(self, nonfinite: Sequence[Collection[int]], flushes: int) -> None:
        """Count skipped flushes, and raise or log the keys that caused them.

        Parameters
        ----------
        nonfinite : sequence of collection of int
            For each rank, the registry indices of the keys of which it has pushed NaN.
        flushes : int

        Raises
        ------
        NonFinite
        """
        self.skipped += flushes
        specs, found = [*self._registry], []
        indices = sorted(set().union(*nonfinite))
        for index in indices[:_MAX_KEYS]:
            ranks = [rank for rank, each in enumerate(nonfinite) if index in each]
            found.append(f"key {specs[index].key!r} on {format_ranks(ranks)}")
        if len(indices) > _MAX_KEYS:
            found.append(f"{len(indices) - _MAX_KEYS} more keys")
        text = f"NaN or infinity was pushed: {', '.join(found)}; no rank applies these pushes"
        if self._raises:
            raise NonFinite(
                f"rank {self._comm.rank} of {self._comm.size}: {text}",
                key=specs[indices[0]].key if len(indices) == 1 else None,
                ranks=[rank for rank, each in enumerate(nonfinite) if each],
            )
        if self._comm.rank == 0:
            _log.warning("ncclkv: %s; %d flushes were skipped so far", text, self.skipped)


class DeviceCheckedFlush(FlushPolicy):
    """Reduces all buckets together, under a flag that the device sets where it finds NaN.

    Not for functions as updaters, which no flag can skip.
    """

    def __init__(self, reducer: Reducer, report: NonfiniteReport) -> None:
        super().__init__(reducer)
        self._report = report
        kernels = self._kernels
        # Not 0 if the updates of the current flush are to be skipped.
        self._skip_flag = kernels.zeros(1, _INT32)
        # Flushes skipped, and flags of the keys with NaN, since the last report.
        self._skipped = kernels.zeros(1, _INT32)
        self._keys = kernels.zeros(0, _INT32)

    def prepare_read(self, states: Sequence[StoredBucket]) -> None:
        pushed = [state for state in self._layout.states if state.waiting]
        if pushed:
            self._find_nonfinite(pushed)
        residuals = self._layout.reductions.residuals
        residuals.skip = self._skip_flag
        try:
            for state in pushed:
                self._reducer.launch(state, skip_flag=self._skip_flag)
        finally:
            residuals.skip = None  # the flag stays set, and other launches are not skipped
        self._reducer.finish(self._layout.states)
        self._reducer.publish(states)

    def _find_nonfinite(self, states: Sequence[StoredBucket]) -> None:
        """Set the skip flag on all ranks if a gradient pushed on any rank is not finite."""
        kernels, registry = self._kernels, self._layout.registry
        if self._keys.size < len(registry):
            grown = kernels.zeros(len(registry), _INT32)
            kernels.pack(self._keys, grown[: self._keys.size])
            # The current stream may not be the stream of these flags, whose later work may get
            # their memory before the copy has read it.
            self._comm.keep_alive(self._keys)
            self._keys = grown
        kernels.fill(self._skip_flag, 0)
        for state in states:
            # A neutral element of max or min is infinite, and no value of the program's.
            for array in state.own_arrays():
                kernels.find_nonfinite(array, self._skip_flag)
            for key in state.own:
                index = registry[key].index
                for array in self._layout[key].pushed_arrays():
                    kernels.find_nonfinite(array, self._keys[index : index + 1])
        work = self._comm.allreduce(self._skip_flag, self._skip_flag, "max")
        work.label = "the check for NaN and infinity"
        work.wait()
        kernels.reduce([self._skipped, self._skip_flag], self._skipped, "sum")

    def report_skipped(self) -> None:
        """Report the flushes skipped since the last call; the host has waited for them."""
        if not self._keys.size or not (skipped := self._comm.to_host(self._skipped)[0]):
            return
        own = frozenset(np.flatnonzero(self._comm.to_host(self._keys)).tolist())
        nonfinite = self._comm.control.allgather(own, "the keys with NaN or infinity")
        for flags in self._skipped, self._keys:
            self._kernels.fill(flags, 0)
        self._report.skip(nonfinite, int(skipped))
