"""Flight recorder: the last calls and waits of each rank, on pages that its neighbours can read.

A rank appends each call of a store before it acts on it, so the page of a stopped or dead rank
shows what that rank was about to do.  Ranks that share no memory read their own pages only, and
exchange reports (`ncclkv.comm.diagnosis.mismatch`).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ncclkv import concurrency, notify
from ncclkv.comm.diagnosis import call_ring
from ncclkv.comm.diagnosis.call_ring import CALLS, CallRing
from ncclkv.comm.diagnosis.reports import OtherWait, Report, Wait
from ncclkv.comm.types import Buffer
from ncclkv.system import stacks
from ncclkv.system.processes import Process, namespace, process

_TEXT_BYTES = 160
_MAX_NAMES = 8
_MAX_RANKS = 16

_HEAD = struct.Struct("<qqqqq64s")
"""1 once the rank closes; its process, the namespace of that id, its thread, the signal that prints
its stacks, its host."""

_CLOSING = 0
"""Offset of the word that is 1 once the rank closes."""

# A native word is stored whole: a neighbour that reads a time twice finds each change.
_OTHER_WAIT = struct.Struct("q16sq512s")
"""Time at which this rank last showed a wait outside the store, or 0; the store that waits, the
index of its call; the description and names."""

_TIME = _INDEX = struct.Struct("q")

_WAIT = struct.Struct(f"<qqq{_MAX_RANKS}i160s")
"""Times at which the wait began and was last shown; the count of awaited ranks, the lowest of
them, and the wait's description."""

_OTHER_WAIT_FROM = _HEAD.size
_INDEX_FROM = _OTHER_WAIT_FROM + 24
_WAIT_FROM = _OTHER_WAIT_FROM + _OTHER_WAIT.size
_LOG_FROM = _WAIT_FROM + _WAIT.size
NBYTES = _LOG_FROM + call_ring.NBYTES
"""Size of a page."""


class FlightRecorder:
    """This rank's page, which it writes, and those of its neighbours, which it reads.

    Parameters
    ----------
    rank : int
        This rank.
    pages : mapping of int to ndarray, shape (NBYTES,), dtype uint8
        Zeroed pages by rank, this rank's included.

    Attributes
    ----------
    log : CallRing
        This rank's calls.
    """

    def __init__(self, rank: int, pages: Mapping[int, Buffer]) -> None:
        self._rank = rank
        self._pages = {each: page.data for each, page in pages.items()}
        self._own = self._pages[rank]
        self.identify()
        self.log = CallRing(self._own[_LOG_FROM:NBYTES])

    # This rank

    def identify(self) -> None:
        """Show this process and the calling thread as those of this rank, on its page."""
        host = socket.gethostname().encode(errors="replace")[:64]
        identity = os.getpid(), namespace(), concurrency.get_ident(), stacks.signal_here(), host
        _HEAD.pack_into(self._own, 0, 0, *identity)

    def announce(self) -> None:
        """Tell ``ncclkv run``, if it runs this rank, where in its memory this rank's page is."""
        address = np.frombuffer(self._own, np.uint8).ctypes.data
        notify.notify(notify.PAGE, f"{os.getpid()} {address} {NBYTES}")

    @concurrency.shared_step("page: record other wait", writes=True)
    def record_other_wait(
        self, description: str, names: Sequence[str], store: str = "", call_index: int = 0
    ) -> None:
        """Show on this rank's page that its thread now waits outside this store: an `OtherWait`."""
        shown = [description[:_TEXT_BYTES], *names[:_MAX_NAMES]]
        text = "\n".join(shown).encode(errors="replace")
        self.clear_other_wait()
        # The time is stored last: no reader combines the parts of two waits.
        _OTHER_WAIT.pack_into(self._own, _OTHER_WAIT_FROM, 0, store.encode(), call_index, text)
        concurrency.point("page: other wait without its time")
        _TIME.pack_into(self._own, _OTHER_WAIT_FROM, concurrency.monotonic_ns())

    @concurrency.shared_step("page: clear other wait", writes=True)
    def clear_other_wait(self) -> None:
        """Show no wait outside this store on this rank's page."""
        _TIME.pack_into(self._own, _OTHER_WAIT_FROM, 0)

    @concurrency.shared_step("page: retract other wait", writes=True)
    def retract_other_wait(self) -> None:
        """Show on this rank's page that the call of the wait outside this store waits no more."""
        _INDEX.pack_into(self._own, _INDEX_FROM, 0)

    @concurrency.shared_step("page: record wait", writes=True)
    def record_wait(self, ranks: Collection[int], description: str, waited: float) -> None:
        """Show on this rank's page that it has waited for `ranks` for `waited` seconds."""
        now, lowest = concurrency.monotonic_ns(), sorted(ranks)[:_MAX_RANKS]
        text = description.encode(errors="replace")[:_TEXT_BYTES]
        padded = [*lowest, *[-1] * (_MAX_RANKS - len(lowest))]
        since = now - int(waited * 1e9)
        _WAIT.pack_into(self._own, _WAIT_FROM, since, now, len(ranks), *padded, text)

    @concurrency.shared_step("page: clear wait", writes=True)
    def clear_wait(self) -> None:
        """Show no wait on this rank's page."""
        _WAIT.pack_into(self._own, _WAIT_FROM, 0, 0, 0, *[-1] * _MAX_RANKS, b"")

    @concurrency.shared_step("page: mark closing", writes=True)
    def mark_closing(self) -> None:
        """Mark this rank as closing: it now waits only for its peers to close."""
        self._own[_CLOSING] = 1

    # Any rank

    @concurrency.shared_step("page: read closing")
    def is_closing(self, rank: int) -> bool:
        """Return whether a readable page marks its rank as closing."""
        return rank in self._pages and bool(self._pages[rank][_CLOSING])

    def __contains__(self, rank: int) -> bool:
        """Return whether the page of a rank is readable here."""
        return rank in self._pages

    @concurrency.shared_step("page: read")
    def read(self, rank: int, max_calls: int = CALLS) -> Report:
        """Return the report of a rank, with its last calls."""
        page = self._pages[rank]
        _, pid, _, thread, _, host = _HEAD.unpack_from(page)
        name = f"{_decode(host)}/{pid}/{thread}"
        label = f"rank {rank} on {_decode(host)} (pid {pid})"
        # First the wait: a call made before the wait was shown is then always counted.
        other_wait, log = self._other_wait(page), page[_LOG_FROM:NBYTES]
        made = call_ring.read_count(log)
        concurrency.point("page: count was read")
        calls = list(call_ring.read_calls(log, max_calls))
        return Report(name, label, calls, other_wait, self._wait(page), made=made)

    @concurrency.shared_step("page: read other wait")
    def _other_wait(self, page: memoryview) -> OtherWait | None:
        """Return the wait outside the store that a page shows."""
        when, store, call_index, text = _OTHER_WAIT.unpack_from(page, _OTHER_WAIT_FROM)
        concurrency.point("page: other wait before its time is compared")
        # The rank may be writing: a time that has changed meanwhile shows a mixture of two waits.
        if not when or when != _OTHER_WAIT.unpack_from(page, _OTHER_WAIT_FROM)[0]:
            return None
        description, *names = _decode(text).split("\n")
        age = (concurrency.monotonic_ns() - when) / 1e9
        return OtherWait(age, description, names, _decode(store), call_index)

    @concurrency.shared_step("page: read wait")
    def _wait(self, page: memoryview) -> Wait | None:
        """Return the wait that a page shows."""
        since, shown, total, *rest = _WAIT.unpack_from(page, _WAIT_FROM)
        if not since:
            return None
        ranks = [rank for rank in rest[:_MAX_RANKS] if rank >= 0]
        age = (concurrency.monotonic_ns() - shown) / 1e9
        return Wait((shown - since) / 1e9, age, total, ranks, _decode(rest[_MAX_RANKS]))

    def process(self, rank: int) -> Process | None:
        """Return a neighbour's process; None where its id is not valid here."""
        if rank == self._rank or rank not in self._pages:
            return None
        _, pid, pid_namespace, _, _, _ = _HEAD.unpack_from(self._pages[rank])
        is_valid = pid and pid_namespace and pid_namespace == namespace()
        return process(pid) if is_valid else None

    def show_stacks(self, rank: int) -> None:
        """Make a neighbour print its stacks, if it has a signal for that."""
        if self.process(rank) is not None:
            _, pid, _, _, signal, _ = _HEAD.unpack_from(self._pages[rank])
            stacks.show(pid, signal)


def _decode(text: bytes) -> str:
    return text.rstrip(b"\0").decode(errors="replace")
