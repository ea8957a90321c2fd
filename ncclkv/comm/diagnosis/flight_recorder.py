"""What every rank has called last, where those that share its memory can read it.

A rank notes each call of a store before it does anything for it: the page of a rank that is stopped
or dead tells all the same what that rank was about to do.  Where ranks share no memory, each has
its own page alone, and tells others of it in reports.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Collection, Mapping, Sequence

from ncclkv.comm.diagnosis import call_log
from ncclkv.comm.diagnosis.call_log import CALLS, CallLog
from ncclkv.comm.diagnosis.reports import OtherWait, Report, Wait
from ncclkv.comm.types import Buffer
from ncclkv.system import stacks
from ncclkv.system.processes import Process, namespace, process

_TEXT_BYTES = 160
_NAMES = 8
_HEAD = struct.Struct("<qqqqq64s")
"""Whether the last call is a close; the process, where its number counts, its thread, the signal
that shows its stacks, and its host."""

_CLOSING = 0
"""Where the first of these is."""

_ELSEWHERE = struct.Struct("<q512s")
"""When this rank was seen to wait in another store, and for whom, in words and by name."""

EVERYONE = "*"
"""The name that stands for all ranks of the store that a wait in another one is shown in."""

_RANKS = 16
_WAIT = struct.Struct(f"<qqq{_RANKS}i160s")
"""When this rank's wait began and when it was last seen; for how many ranks, the lowest of them,
and what waits, in words."""

_ELSEWHERE_FROM = _HEAD.size
_WAIT_FROM = _ELSEWHERE_FROM + _ELSEWHERE.size
_LOG_FROM = _WAIT_FROM + _WAIT.size
NBYTES = _LOG_FROM + call_log.NBYTES

REPORTED, ANSWERED = 256, 32
"""The calls of a rank that others are told of: when something is wrong, and when they ask, which a
program that is only slow is to take no notice of."""


class FlightRecorder:
    """The pages of the ranks that can be read here.

    Parameters
    ----------
    rank : int
        This one.
    pages : mapping of int to ndarray, shape (NBYTES,)
        By rank, this one's included; zero at first.

    Attributes
    ----------
    log : CallLog
        This rank's calls.
    """

    def __init__(self, rank: int, pages: Mapping[int, Buffer]) -> None:
        self._rank = rank
        self._pages = {each: page.data for each, page in pages.items()}
        self._own = self._pages[rank]
        host = socket.gethostname().encode(errors="replace")[:64]
        here = os.getpid(), namespace(), threading.get_ident(), stacks.signal_here(), host
        _HEAD.pack_into(self._own, 0, 0, *here)
        self.log = CallLog(self._own[_LOG_FROM:NBYTES])

    # This rank

    def wait_elsewhere(self, words: str, names: Sequence[str]) -> None:
        """Say that this rank's thread waits in another store, at this moment."""
        text = "\n".join([words[:_TEXT_BYTES], *names[:_NAMES]]).encode(errors="replace")
        _ELSEWHERE.pack_into(self._own, _ELSEWHERE_FROM, time.monotonic_ns(), text)

    def wait_no_more(self) -> None:
        """Say that it does not, or not any more."""
        _ELSEWHERE.pack_into(self._own, _ELSEWHERE_FROM, 0, b"")

    def wait_for(self, ranks: Collection[int], words: str, waited: float) -> None:
        """Show that this rank has waited for other ranks so many seconds, and still does."""
        now, lowest = time.monotonic_ns(), sorted(ranks)[:_RANKS]
        text = words.encode(errors="replace")[:_TEXT_BYTES]
        padded = [*lowest, *[-1] * (_RANKS - len(lowest))]
        since = now - int(waited * 1e9)
        _WAIT.pack_into(self._own, _WAIT_FROM, since, now, len(ranks), *padded, text)

    def arrived(self) -> None:
        """Show that the wait is over."""
        _WAIT.pack_into(self._own, _WAIT_FROM, 0, 0, 0, *[-1] * _RANKS, b"")

    def close(self) -> None:
        """Say that this rank needs nothing of the others any more, but that they close, too."""
        self._own[_CLOSING] = 1

    # Any rank

    def is_closing(self, rank: int) -> bool:
        """Whether a rank whose page can be read here has said so."""
        return rank in self._pages and bool(self._pages[rank][_CLOSING])

    def __contains__(self, rank: int) -> bool:
        """Whether a rank's page can be read here."""
        return rank in self._pages

    def read(self, rank: int, most: int = CALLS) -> Report:
        """A rank's last calls."""
        page = self._pages[rank]
        _, number, _, thread, _, host = _HEAD.unpack_from(page)
        name = f"{_words(host)}/{number}/{thread}"
        who = f"rank {rank} on {_words(host)} (pid {number})"
        calls = list(call_log.read(page[_LOG_FROM:NBYTES], most))
        return Report(name, who, calls, self._elsewhere(page), self._wait(page))

    def _elsewhere(self, page: memoryview) -> OtherWait | None:
        """Where a rank waits, if not here."""
        when, text = _ELSEWHERE.unpack_from(page, _ELSEWHERE_FROM)
        if not when:
            return None
        words, *names = _words(text).split("\n")
        return OtherWait((time.monotonic_ns() - when) / 1e9, words, names)

    def _wait(self, page: memoryview) -> Wait | None:
        """Return the wait that a page shows."""
        since, seen, count, *rest = _WAIT.unpack_from(page, _WAIT_FROM)
        if not since:
            return None
        ranks = [rank for rank in rest[:_RANKS] if rank >= 0]
        age = (time.monotonic_ns() - seen) / 1e9
        return Wait((seen - since) / 1e9, age, count, ranks, _words(rest[_RANKS]))

    def process(self, rank: int) -> Process | None:
        """The process of a rank whose page can be read here; None where it has no number here."""
        if rank == self._rank or rank not in self._pages:
            return None
        _, number, where, _, _, _ = _HEAD.unpack_from(self._pages[rank])
        return process(number) if number and where and where == namespace() else None

    def show_stacks(self, rank: int) -> None:
        """Have a rank write where its threads stand, if it is one that can."""
        if self.process(rank) is not None:
            _, number, _, _, signal, _ = _HEAD.unpack_from(self._pages[rank])
            stacks.show(number, signal)


def _words(text: bytes) -> str:
    return text.rstrip(b"\0").decode(errors="replace")
