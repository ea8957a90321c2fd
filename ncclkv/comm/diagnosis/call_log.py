"""Notes of calls: what was called, and where in the user's program.

Every call of a store makes one, so there is a twin in C (``c/notes.c``), which is used where it was
built.  Their pages and their marks are the same.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ncclkv import env

CompiledNotes: Any
try:
    from ncclkv.comm._notes import Notes as CompiledNotes
except ImportError:
    CompiledNotes = None

OWN = (f"{Path(__file__).resolve().parents[1]}/", contextlib.__file__)
"""How the names of files begin whose calls are not the user's."""

CALL = struct.Struct("<qqqqq")
"""A call's number, from 1; what it is, its keys and its text; and when, in nanoseconds."""

_COUNT = struct.Struct("<q")

_MOST_KNOWN = 1024
_SITE_LENGTH = 48

MASK = 2**63 - 1
"""Of all numbers: they are those that a signed word of 64 bits holds."""


def follow(mark: int, what: int, keys: int) -> int:
    """The mark after one more call: a number of all calls so far, in their order."""
    return (mark * 0x9E3779B97F4A7C15 + what * 0xBF58476D1CE4E5B9 + keys + 1) & MASK


def of_user(frame: FrameType) -> FrameType:
    """The frame of the user's that a call came from."""
    while frame.f_code.co_filename.startswith(OWN) and frame.f_back is not None:
        frame = frame.f_back
    return frame


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


class PlainNotes:
    """Notes on a page.

    Parameters
    ----------
    page : memoryview
        Of bytes.
    count : int
        Where in it the number of calls is.
    calls : int
        Where the last of them are.
    most : int
        How many.
    own : tuple of str
        As `OWN`.
    """

    def __init__(
        self, page: memoryview, count: int, calls: int, most: int, own: tuple[str, ...]
    ) -> None:
        self._page = page
        self._count = count
        self._calls = calls
        self._most = most
        self._own = own
        self._number = 0
        self._known: dict[tuple[int, int, int, int], tuple[int, CodeType]] = {}

    def put(self, what: int, keys: int, mark: int, frame: FrameType) -> int | None:
        """Note a call that comes from `frame`.

        Returns
        -------
        int or None
            What `mark` becomes by it; None, and nothing is noted, where its words are not known.
        """
        known = self._known.get(self._place(what, keys, frame)[0])
        if known is None:
            return None
        self._number = number = self._number + 1
        lo = self._calls + number % self._most * CALL.size
        CALL.pack_into(self._page, lo, number, what, keys, known[0], time.monotonic_ns())
        _COUNT.pack_into(self._page, self._count, number)
        return follow(mark, what, keys)

    def learn(self, what: int, keys: int, text: int, frame: FrameType) -> None:
        """Take the number of the words of such calls."""
        if len(self._known) == _MOST_KNOWN:
            self._known.clear()
        place, code = self._place(what, keys, frame)
        # The code is kept, for its address is in the place.
        self._known[place] = text, code

    def _place(
        self, what: int, keys: int, frame: FrameType
    ) -> tuple[tuple[int, int, int, int], CodeType]:
        while frame.f_code.co_filename.startswith(self._own) and frame.f_back is not None:
            frame = frame.f_back
        return (what, keys, id(frame.f_code), frame.f_lasti), frame.f_code


Notes: Any = PlainNotes
if env.compiled() and CompiledNotes is not None:
    Notes = CompiledNotes
