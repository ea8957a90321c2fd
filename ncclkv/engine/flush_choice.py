"""`FlushChoice`: the flush policy of a store, chosen from its options and its update rule."""

from __future__ import annotations

from ncclkv.engine.flush import EagerFlush, FlushPolicy
from ncclkv.engine.flush_agreement import AgreedFlush
from ncclkv.engine.nonfinite import DeviceCheckedFlush, NonfiniteReport
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
        self.missing_zeros = missing_zeros
        self.report = NonfiniteReport(reducer.comm, reducer.layout.registry, nonfinite)
        self._reducer = reducer
        self._checked: DeviceCheckedFlush | None = None
        if self.report.enabled and not reducer.comm.blocks:
            self._checked = DeviceCheckedFlush(reducer, self.report)

    def policy(self) -> FlushPolicy:
        """Return the policy outside uneven blocks, for the update rule in force."""
        reducer = self._reducer
        if not (self.missing_zeros or self.report.enabled):
            return EagerFlush(reducer)
        if self._checked is None or self.missing_zeros or not reducer.updates.rule.can_skip:
            return self.agreed(uneven=False)
        return self._checked

    def agreed(self, *, uneven: bool) -> AgreedFlush:
        """Return a policy of flushes that begin with an exchange, in or outside an uneven block."""
        return AgreedFlush(
            self._reducer, self.report, missing_zeros=self.missing_zeros, uneven=uneven
        )

    def report_skipped(self) -> None:
        """Raise or log the flushes that the device has skipped, once the host has waited."""
        if self._checked is not None:
            self._checked.report_skipped()
