"""A collective that was complete when it was launched."""

from __future__ import annotations

from ncclkv.comm.base import Work


class DoneWork(Work):
    """A collective of one rank, or of nothing: its call has done it."""

    def done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> None: ...
