"""Log of a rank's last calls: what was called, and where in the user's program.

The log lies on a page that neighbours read, also after this rank's death.  Every call of a store
is appended to it, so that must be cheap: the words of a call are written at the first call of these
keys from that instruction, and a call writes the number of its words and the time.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from time import monotonic_ns
from types import CodeType, FrameType

from ncclkv.comm.diagnosis.reports import RecordedCall

CALLS = 1024
"""Calls that a log holds."""

OWN = (f"{Path(__file__).resolve().parents[2]}/", contextlib.__file__)
"""How the names of files begin whose calls are not the user's."""

MASK = 2**63 - 1
"""Keeps a number within a signed word of 64 bits."""

# Of native words, which are written whole: a neighbour never reads half of a call's number.
_CALL = struct.Struct("qqq")
"""A call's number, from 1; its words; and when, in nanoseconds."""

_WORDS = struct.Struct("qq160s")
"""What is called, its keys, and both in words, with the place."""

_MOST_KNOWN = 2048

# The words of the oldest call may be older still, by as many others as are known.
_TEXTS = _MOST_KNOWN + CALLS

_COUNT_BYTES = 8
_TEXTS_FROM = _COUNT_BYTES + CALLS * _CALL.size
NBYTES = _TEXTS_FROM + _TEXTS * _WORDS.size

_SITE_LENGTH = 48


def follow(mark: int, what: int, keys: int) -> int:
    """The mark after one more call: a number of all calls so far, in their order."""
    return (mark * 0x9E3779B97F4A7C15 + what * 0xBF58476D1CE4E5B9 + keys + 1) & MASK


def of_user(frame: FrameType) -> FrameType:
    """The frame of the user's that a call came from."""
    while _is_own(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    return frame


@lru_cache(1024)
def _is_own(file: str) -> bool:
    """Return whether calls from a file are not the user's."""
    return file.startswith(OWN)


def call_site(frame: FrameType) -> str:
    """Return the line of the user's program that a call came from, as short as can be."""
    user = of_user(frame)
    path = user.f_code.co_filename
    with contextlib.suppress(OSError):  # the directory that the program is in may be gone
        here = os.path.relpath(path) if os.path.isabs(path) else path
        path = min(path, here, key=len)
    if len(path) > _SITE_LENGTH:
        path = f"...{path[-_SITE_LENGTH:]}"
    return f"{path}:{user.f_lineno}"


class CallLog:
    """Appends this rank's calls to its log.

    Parameters
    ----------
    page : memoryview
        The `NBYTES` of the log, zero at first.
    """

    def __init__(self, page: memoryview) -> None:
        self._page = page
        self._count = page[:_COUNT_BYTES].cast("q")
        self._number = 0
        self._learnt = 0
        self._known: dict[tuple[int, int, int, int], tuple[int, CodeType]] = {}

    @property
    def count(self) -> int:
        """Return the number of calls so far."""
        return self._number

    def append(self, what: int, keys: int, mark: int, frame: FrameType) -> int | None:
        """Append a call that comes from `frame`.

        Returns
        -------
        int or None
            What `mark` becomes by it; None, and nothing is appended, where its words are missing.
        """
        frame = of_user(frame)
        known = self._known.get((what, keys, id(frame.f_code), frame.f_lasti))
        if known is None:
            return None
        self._number = number = self._number + 1
        lo = _COUNT_BYTES + number % CALLS * _CALL.size
        _CALL.pack_into(self._page, lo, number, known[0], monotonic_ns())
        self._count[0] = number
        return follow(mark, what, keys)

    def intern(self, what: int, keys: int, text: str, frame: FrameType) -> None:
        """Write the words of a call from `frame`, which may then be appended any number of times.

        Parameters
        ----------
        text : str
            Its first 160 bytes are kept.
        """
        if len(self._known) == _MOST_KNOWN:
            self._known.clear()
        frame = of_user(frame)
        # The code is kept, or another one could take its address, which stands for it.
        place = what, keys, id(frame.f_code), frame.f_lasti
        self._known[place] = self._learnt, frame.f_code
        lo = _TEXTS_FROM + self._learnt % _TEXTS * _WORDS.size
        _WORDS.pack_into(self._page, lo, what, keys, text.encode(errors="replace"))
        self._learnt += 1


def read(page: memoryview, most: int = CALLS) -> Iterator[RecordedCall]:
    """Yield the last calls of a log, which its rank may be writing to, the latest at the end."""
    (count,) = page[:_COUNT_BYTES].cast("q")
    now = monotonic_ns()
    for number in range(max(1, count - min(most, CALLS - 1) + 1), count + 1):
        lo = _COUNT_BYTES + number % CALLS * _CALL.size
        found, words, when = _CALL.unpack_from(page, lo)
        at = _TEXTS_FROM + words % _TEXTS * _WORDS.size
        what, keys, text = _WORDS.unpack_from(page, at)
        # Its rank may be writing over it, and begins with the number.
        if found == number == _CALL.unpack_from(page, lo)[0]:
            said = text.rstrip(b"\0").decode(errors="replace")
            yield RecordedCall(number, what, keys, said, (now - when) / 1e9)
