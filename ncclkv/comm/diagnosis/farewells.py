"""Farewells: the reasons that ranks give when they leave a store that others still use."""

from __future__ import annotations

from ncclkv.comm.diagnosis.reports import FEWER_BATCHES
from ncclkv.errors import Divergence, KVStoreError, OrderMismatch, RankLost, SpecMismatch

PROCESS_ENDED = "its process ended without closing the store"

RETURNED = "its function returned without closing the store"

FINISHED = f"{PROCESS_ENDED} ({FEWER_BATCHES})"
"""The reason of a process whose program ended without an error."""


def is_finished(reason: str) -> bool:
    """Return whether a rank gave this reason after the end of its program, without an error.

    Such a rank may have made all its calls, while others are still in their last ones.
    """
    return reason in (FINISHED, RETURNED)


def left_error(
    rank: int, reason: str, waiting: str, prefix: str, last_call: str = ""
) -> KVStoreError:
    """Return the error to raise when a rank has left.

    Parameters
    ----------
    rank : int
    reason : str
        Of its farewell.
    waiting : str
        What needed the rank, such as ``a barrier waited for it``.
    prefix : str
        Begin of the message.
    last_call : str
        End of the message.
    """
    for disagreement in OrderMismatch, SpecMismatch, Divergence:
        # Of all ranks: this one would have found it, too, if it had been as fast.
        if reason.startswith(disagreement.__name__):
            return disagreement(f"{prefix}rank {rank} left with {reason}")
    return RankLost(f"{prefix}rank {rank} left while {waiting}; farewell: {reason}{last_call}")
