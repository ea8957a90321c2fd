"""`DeviceCheckedFlush`: NaN found on the device, which skips its updates without the host.

A flush raises a flag where a gradient is not finite.  The ranks' flags are reduced, and every
update of the flush reads the result when it runs.  Hosts learn of skipped flushes at their next
wait, and raise or log by `NonfiniteReport`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ncclkv.comm.base import Communicator
from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.comm.types import Apply
from ncclkv.engine.bucket_state import Array, BucketState
from ncclkv.engine.layout import Layout
from ncclkv.engine.reducer import Reducer
from ncclkv.engine.span import Span
from ncclkv.engine.update_rule import Rule
from ncclkv.errors import NonFinite
from ncclkv.kernels.base import Kernels
from ncclkv.table import plan
from ncclkv.table.registry import Key, Registry

_log = logging.getLogger("ncclkv")

_INT32 = np.dtype(np.int32)

_MAX_KEYS = 8
"""Number of keys that a message names; further keys are counted."""


class NonfiniteReport:
    """Raises or logs skipped flushes, by the store's ``nonfinite=``.

    Parameters
    ----------
    comm : Communicator
    registry : Registry
    mode : {"ignore", "raise", "skip_step"}

    Attributes
    ----------
    enabled : bool
        Whether gradients are checked at all.
    skipped : int
        Number of flushes skipped so far.
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
            For each rank, the registry indices of the keys that it has pushed NaN of.
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
        text = f"NaN or infinity was pushed: {', '.join(found)}; no rank applies what was pushed"
        if self._raises:
            raise NonFinite(f"rank {self._comm.rank} of {self._comm.size}: {text}")
        if self._comm.rank == 0:
            _log.warning("ncclkv: %s, and %d such flushes were skipped so far", text, self.skipped)


class DeviceNonfiniteCheck:
    """The flags of one store, in device memory.

    Attributes
    ----------
    skip_flag : ndarray of int32, shape (1,)
        Not 0 if the updates of the current flush are to be skipped.
    """

    def __init__(
        self, comm: Communicator, layout: Layout, kernels: Kernels, report: NonfiniteReport
    ) -> None:
        self.skip_flag = kernels.zeros(1, _INT32)
        self._comm = comm
        self._layout = layout
        self._kernels = kernels
        self._report = report
        self._skipped = kernels.zeros(1, _INT32)
        self._keys = kernels.zeros(0, _INT32)

    def find(self, states: Sequence[BucketState]) -> None:
        """Set the skip flag on all ranks if a gradient pushed on one of them is not finite."""
        kernels, registry = self._kernels, self._layout.registry
        if self._keys.size < len(registry):
            grown = kernels.zeros(len(registry), _INT32)
            kernels.pack(self._keys, grown[: self._keys.size])
            self._keys = grown
        kernels.fill(self.skip_flag, 0)
        for state in states:
            for bounds in plan.spans(state.bucket, state.pushed):
                kernels.find_nonfinite(state.span(bounds).gradients, self.skip_flag)
            for key in state.pushed:
                index = registry[key].index
                kernels.find_nonfinite(self._layout[key].gradient, self._keys[index : index + 1])
        work = self._comm.allreduce(self.skip_flag, self.skip_flag, "max")
        work.label = "whether NaN or infinity was pushed"
        work.wait()
        kernels.reduce([self._skipped, self.skip_flag], self._skipped, "sum")

    def report(self) -> None:
        """Report the flushes skipped since the last call; the host has waited for them."""
        if not self._keys.size or not (skipped := self._read(self._skipped)[0]):
            return
        own = frozenset(np.flatnonzero(self._read(self._keys)).tolist())
        nonfinite = self._comm.control.allgather(own, "where NaN or infinity was pushed")
        for flags in self._skipped, self._keys:
            self._kernels.fill(flags, 0)
        self._report.skip(nonfinite, int(skipped))

    def _read(self, flags: Array) -> Any:
        """Return a copy of flags in host memory."""
        on_host = np.empty(flags.size, _INT32)
        self._kernels.unpack(flags, on_host)
        return on_host


class PredicatedAssign(Rule):
    """`Assign` under a flag: the sum replaces the value if the flag is 0."""

    def __init__(self, kernels: Kernels, skip_flag: Array) -> None:
        self._kernels = kernels
        self._skip_flag = skip_flag

    def target(
        self, state: BucketState, spans: Sequence[Span], skip_flag: Array | None
    ) -> list[tuple[Array, Apply | None]]:
        return [(span.gradients, self._assign(span)) for span in spans]

    def _assign(self, span: Span) -> Apply:
        """Return the predicated assignment of a span's ranges."""
        kernels, total, weights, skip_flag = (
            self._kernels,
            span.gradients,
            span.weights,
            self._skip_flag,
        )
        return lambda lo, hi: kernels.assign(total[lo:hi], weights[lo:hi], skip_flag)


class DeviceCheckedFlush:
    """Reduces all buckets together, under a flag that the device sets where it finds NaN."""

    flushes_everything = True
    allows_missing = False

    def __init__(self, reducer: Reducer, check: DeviceNonfiniteCheck) -> None:
        self._reducer = reducer
        self._check = check
        self._assign = PredicatedAssign(reducer.kernels, check.skip_flag)

    def make_room(self, state: BucketState) -> None:
        self.flush()

    def packed(self, state: BucketState) -> None:
        """Leave the bucket for the next flush."""

    def pushed(self, keys: Collection[Key]) -> None:
        """Leave the keys for the next flush: a function as updater cannot be skipped by a flag."""

    def flush(self) -> None:
        reducer, rule = self._reducer, self._reducer.updates.rule
        states = [state for state in reducer.layout.states if state.pushed]
        if states:
            self._check.find(states)
            for state in states:
                reducer.launch(
                    state,
                    rule=self._assign if rule.replaces else rule,
                    skip_flag=self._check.skip_flag,
                )
        reducer.complete(reducer.layout.states)

    def prepare_read(self, states: Sequence[BucketState]) -> None:
        self.flush()
        self._reducer.publish(states)

    def share_failure(self) -> None:
        self._reducer.updates.share_failure()
