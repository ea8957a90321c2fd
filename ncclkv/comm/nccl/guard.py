"""The block in which an error breaks a communicator."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from ncclkv.errors import KVStoreError, UsageError

if TYPE_CHECKING:
    from ncclkv.comm.nccl.progress import NcclProgress


class Guard:
    """Locks a flight and checks it on entry; a `KVStoreError` within makes it fail."""

    def __init__(self, flight: NcclProgress) -> None:
        self._flight = flight

    def __enter__(self) -> None:
        self._flight.lock.acquire()
        try:
            self._flight.check()
        except BaseException:
            self._flight.lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            # In a capture nothing is in flight: a wrong call spoils the graph alone.
            spoils = self._flight.graphs.recording is not None and isinstance(error, UsageError)
            if isinstance(error, KVStoreError) and not spoils:
                self._flight.fail(error)
        finally:
            self._flight.lock.release()
