"""Farewells: the reasons that ranks give when they leave a store that others still use."""

from __future__ import annotations

from weakref import ref

from ncclkv import notify
from ncclkv.comm.diagnosis.reports import FEWER_BATCHES
from ncclkv.errors import (
    CommError,
    ContractError,
    Divergence,
    KVStoreError,
    OrderMismatch,
    RankLost,
    SpecMismatch,
)
from ncclkv.system import abort

PROCESS_ENDED = "its process ended without closing the store"

RETURNED = "its function returned without closing the store"

FINISHED = f"{PROCESS_ENDED} ({FEWER_BATCHES})"
"""The reason of a process whose program ended without an error."""

_failure: tuple[ref[BaseException], str] | None = None


def failed(error: BaseException) -> None:
    """Record an error after which other ranks may never reach the end of MPI."""
    if isinstance(error, (ContractError, CommError)):
        # A reference to the error would keep the store alive, by the frames of its traceback.
        _record((ref(error), abort.reason_of(error)))


def forgive(error: BaseException | None = None) -> None:
    """Drop the record of `error`, whose rank has ended normally; without it, of any error."""
    if error is None or (_failure is not None and _failure[0]() is error):
        _record(None)


def _record(failure: tuple[ref[BaseException], str] | None) -> None:
    """Record a failure, and report it to `ncclkv run`: the program may end by `os._exit`."""
    global _failure
    before, now = (each[1] if each is not None else "" for each in (_failure, failure))
    _failure = failure
    if now != before:
        notify.notify(notify.BROKEN, now)


def failure() -> str:
    """Return the reason of this process's failure; empty without one."""
    return "" if _failure is None else _failure[1]


def own() -> str:
    """Return the reason in this rank's farewell at the end of its process."""
    if failure():
        return f"{PROCESS_ENDED}, after {failure()}"
    cause = abort.bad_end()
    return f"{PROCESS_ENDED}, by {cause}" if cause else FINISHED


def is_finished(reason: str) -> bool:
    """Return whether a rank gave this reason after the end of its program, without an error.

    Such a rank may have made all its calls, while others are still in their last ones.
    """
    return reason in (FINISHED, RETURNED)


def left_error(
    rank: int, reason: str, waiting: str, prefix: str, last_call: str = ""
) -> KVStoreError:
    """Return the error to raise when a rank has left, between `prefix` and `last_call`.

    `waiting` describes what needed the rank, such as ``a barrier waited for it``.
    """
    for disagreement in OrderMismatch, SpecMismatch, Divergence:
        # Of all ranks: this one would have found it, too, if it had been as fast.
        if reason.startswith(disagreement.__name__):
            return disagreement(f"{prefix}rank {rank} left with {reason}", ranks=[rank])
    return RankLost(
        f"{prefix}rank {rank} left while {waiting}; farewell: {reason}{last_call}", ranks=[rank]
    )
