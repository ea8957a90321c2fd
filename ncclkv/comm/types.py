"""Types that every communicator shares: buffers, ops and launched collectives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, Protocol

from numpy.typing import NDArray

Buffer = NDArray[Any]
"""A one-dimensional contiguous array of one dtype: NumPy's on hosts, CuPy's on GPUs."""

Range = tuple[int, int]
"""``(lo, hi)``: elements ``[lo, hi)`` of an array."""

Apply = Callable[[int, int], None]
"""``apply(lo, hi)``: elements ``[lo, hi)`` of the result are reduced and may be used.

Ranks call the function in different orders.  So it makes no call that all ranks make together: no
launch, exchange, split or end, on any communicator or store.  On hosts it waits for no collective.
`ncclkv.comm.callbacks` refuses these calls.
"""

OPS = ("sum", "avg", "max", "min", "prod")
"""Reduction operators."""

ALIGNMENT = 256
"""Alignment of buffers in bytes: the largest that a communicator needs."""


class Work(ABC):
    """A launched collective.

    Attributes
    ----------
    label : str
        The purpose of the collective, in the caller's words; error messages show it.
    blocks : bool
        True when `wait` blocks the host, False when it blocks a stream.
    """

    label: str = ""
    blocks: bool = True

    @abstractmethod
    def done(self) -> bool:
        """Advance the collective without blocking; return whether it is complete."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> None:
        """Block until the collective is complete on this rank.

        On a GPU the current stream waits, never the host; `Communicator.synchronize` holds the
        deadline there.

        Parameters
        ----------
        timeout : float, optional
            Seconds; by default the communicator's own.

        Raises
        ------
        CommTimeout
            When it is not complete in time; the message names the missing ranks.
        RankLost
            When a rank that is waited for has left.
        """

    def arrivals(self) -> dict[int, float]:
        """Return when each rank of this node entered a complete collective.

        Returns
        -------
        dict of float by rank
            Seconds of a clock that the ranks of a node share.  Empty where ranks exchange messages,
            or did not wait for each other, and after many later collectives.
        """
        return {}

    def device_times(self) -> tuple[float, float] | tuple[()] | None:
        """Return when the GPU began and ended the collective, by `concurrency.perf_counter`.

        Returns
        -------
        tuple or None
            None until the GPU has completed the collective; empty if no times were taken.
        """
        return ()


class WaitObserver(Protocol):
    """Receives the waits of the host for other ranks; see `Communicator.observe_waits`."""

    def waiting(self, what: str, ranks: Collection[int]) -> None:
        """Receive a wait that has lasted a quarter of a second, and goes on."""

    def blocked(self, what: str, ranks: Collection[int], seconds: float) -> None:
        """Receive the end of a wait, with the ranks that were awaited last."""


class DoneWork(Work):
    """A collective that was complete when its launch returned: of one rank, or of no bytes."""

    def done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> None: ...
