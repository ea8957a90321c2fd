"""Farewells: the reasons that ranks give when their programs end without closing a store."""

from __future__ import annotations

from ncclkv.comm.diagnosis.reports import FEWER_BATCHES

PROCESS_ENDED = "its process ended without closing the store"

RETURNED = "its function returned without closing the store"

FINISHED = f"{PROCESS_ENDED} ({FEWER_BATCHES})"
"""The reason of a process whose program ended without an error."""


def is_finished(reason: str) -> bool:
    """Return whether a rank gave this reason after the end of its program, without an error.

    Such a rank may have made all its calls, while others are still in their last ones.
    """
    return reason in (FINISHED, RETURNED)
