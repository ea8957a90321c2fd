"""`FlushChoice`: the flush policy of a store, chosen from its options and its update rule."""

from __future__ import annotations

from ncclkv.engine.flush import EagerFlush, FlushPolicy
from ncclkv.engine.flush_agreement import AgreedFlush
from ncclkv.engine.nonfinite import DeviceCheckedFlush, DeviceNonfiniteCheck, NonfiniteReport
from ncclkv.engine.reducer import Reducer


class FlushChoice:
    """Chooses the flush policy of one store.

    Parameters
    ----------
    reducer : Reducer
    missing_zeros : bool
        Whether ranks may push different keys: a missing key counts as zeros.
    nonfinite : {"ignore", "raise", "skip_step"}

    Attributes
    ----------
    missing_zeros : bool
    report : NonfiniteReport
    """

    def __init__(self, reducer: Reducer, *, missing_zeros: bool, nonfinite: str) -> None:
        comm, layout, kernels = reducer.comm, reducer.layout, reducer.kernels
        self.missing_zeros = missing_zeros
        self.report = NonfiniteReport(comm, layout.registry, nonfinite)
        self._reducer = reducer
        self._check: DeviceNonfiniteCheck | None = None
        if self.report.enabled and not comm.blocks:
            self._check = DeviceNonfiniteCheck(comm, layout, kernels, self.report)

    def policy(self) -> FlushPolicy:
        """Return the policy outside uneven blocks, for the update rule in force."""
        if self.missing_zeros:
            return self._agreed(uneven=False)
        if not self.report.enabled:
            return EagerFlush(self._reducer)
        if self._check is not None and self._reducer.updates.rule.can_skip:
            return DeviceCheckedFlush(self._reducer, self._check)
        return self._agreed(uneven=False)

    def uneven(self) -> AgreedFlush:
        """Return the policy of an uneven block."""
        return self._agreed(uneven=True)

    def _agreed(self, *, uneven: bool) -> AgreedFlush:
        return AgreedFlush(
            self._reducer, self.report, missing_zeros=self.missing_zeros, uneven=uneven
        )

    def report_skipped(self) -> None:
        """Raise or log the flushes that the device has skipped; the host has waited for them."""
        if self._check is not None:
            self._check.report()
