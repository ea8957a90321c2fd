"""Call ring: the last 1,024 calls of a rank, on a page that neighbours can read after its death.

The text of a call is written once, at the first call with these keys from that instruction of the
user's program.  Every call then appends three integers and advances the digest of all calls.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import NamedTuple

from ncclkv import concurrency
from ncclkv.comm.diagnosis.reports import RecordedCall
from ncclkv.frames import cell_of, user_frame
from ncclkv.kernels.host import compiled

CALLS = 1024
"""Count of calls on the page."""

MASK = 2**63 - 1
"""Keeps a code or digest within a signed 64-bit word."""

# Native words are stored whole: a neighbour never reads half of a call's index.
_CALL = struct.Struct("qqq")
"""The call's index, from 1; its text's index; the time in nanoseconds."""

_TEXT = struct.Struct("qq160s")
"""The call's code, the code of its keys, and the text."""

_ITEMS = struct.Struct("q2040s")
"""The index of a text, from 1, and the items of its call's list."""

_LISTS = 16
"""Count of texts whose items are kept."""

_MAX_INTERNED = 8192
"""Count of texts that are found again: a push and a pull of 4,096 keys, one by one."""

_RECENT = 2048
"""Count of the newest texts whose rows a call may refer to."""

# The oldest call on the page may use the oldest recent text of that time.
_TEXTS = _RECENT + CALLS

_COUNT = struct.Struct("q")
_COUNT_BYTES = _COUNT.size
_TEXTS_FROM = _COUNT_BYTES + CALLS * _CALL.size
_ITEMS_FROM = _TEXTS_FROM + _TEXTS * _TEXT.size
NBYTES = _ITEMS_FROM + _LISTS * _ITEMS.size

_MAX_SITE_LENGTH = 48

_DIGEST_FACTOR = 0x9E3779B97F4A7C15


def _term(code: int, keys: int) -> int:
    """Return what a call adds to the digest."""
    return (code * 0xBF58476D1CE4E5B9 + keys + 1) & MASK


def call_site(frame: FrameType) -> str:
    """Return file or notebook's cell, and line, of the user's program; a long name is cut."""
    user = user_frame(frame)
    path = user.f_code.co_filename
    if cell := cell_of(path):
        return f"{cell}:{user.f_lineno}"
    with contextlib.suppress(OSError):  # the working directory may have been deleted
        relative = os.path.relpath(path) if os.path.isabs(path) else path
        path = min(path, relative, key=len)
    if len(path) > _MAX_SITE_LENGTH:
        path = f"...{path[-_MAX_SITE_LENGTH:]}"
    return f"{path}:{user.f_lineno}"


class PreparedCall(NamedTuple):
    """A call from one instruction of the user's program, ready to be appended again.

    Attributes
    ----------
    text : int
        Index of its text.
    term : int
        What the call adds to the digest.
    site : CodeType
        The code of the instruction, kept alive: its address must not be used again.
    instruction : int
        Offset of the instruction in `site`.
    depth : int
        Count of frames from the one that `CallRing.intern` was given up to the user's.
    words : bytes
        The text itself; empty if the call has items, too.
    """

    text: int
    term: int
    site: CodeType
    instruction: int
    depth: int
    words: bytes


@dataclass(eq=False, slots=True)
class LoggedKeys:
    """The keys of a call that a program may repeat, as the ring has them.

    Attributes
    ----------
    code : int or None
        The code of the keys; None until it is computed.
    last : PreparedCall or None
        The last call with these keys.
    verb : str
        The verb of that call.
    priority : int
        The priority of that call.
    """

    code: int | None = None
    last: PreparedCall | None = None
    verb: str = ""
    priority: int = 0


class CallRing:
    """Appends this rank's calls to its page.

    Parameters
    ----------
    page : memoryview
        `NBYTES` zero bytes.
    """

    def __init__(self, page: memoryview) -> None:
        self._page = page
        append = compiled.append_call if compiled.active else append_call
        # The one step in which a call appears: how often its text is written depends on bytecode.
        self._append = concurrency.stepped(append, "log: append")
        self.count = 0
        self._texts = self._lists = 0
        self._interned: dict[tuple[int, int, int, int], PreparedCall] = {}

    def find(self, code: int, keys: int, frame: FrameType) -> PreparedCall | None:
        """Return a call from the user's `frame` whose text is interned, or None.

        An old text is written to a new row, because its row is soon overwritten.
        """
        name = code, keys, id(frame.f_code), frame.f_lasti
        call = self._interned.get(name)
        if call is not None and self._texts - call.text > _RECENT:
            if not call.words:
                return None
            call = self._interned[name] = call._replace(text=self._texts)
            self._write_text(code, keys, call.words)
        return call

    def append(self, call: PreparedCall, digest: int) -> int:
        """Append a call whose text was found or interned just now; return the next digest."""
        self.count = index = self.count + 1
        return self._append(self._page, index, call.text, call.term, digest)

    def repeat(self, call: PreparedCall, digest: int, frame: FrameType) -> int | None:
        """Append a call from the user's `frame` again.

        Returns
        -------
        int or None
            The next digest; None, and nothing is appended, where the call was made elsewhere, or
            its text may be overwritten while the call is on the page.
        """
        if frame.f_lasti != call.instruction or frame.f_code is not call.site:
            return None
        if self._texts - call.text > _RECENT:
            return None
        # Not by `append`: a call of Python less in each verb.
        self.count = index = self.count + 1
        return self._append(self._page, index, call.text, call.term, digest)

    def intern(
        self, code: int, keys: int, text: str, frame: FrameType, items: str = ""
    ) -> PreparedCall:
        """Write the text of a call from `frame` to the page; return the call, ready to be appended.

        Parameters
        ----------
        text : str
            Only its first 160 bytes are kept.
        items : str
            The items of a list, as `ncclkv.comm.diagnosis.item_lists` writes them; kept for the
            last 16 texts with items.
        """
        if len(self._interned) == _MAX_INTERNED:
            self._interned.clear()
        user, depth = user_frame(frame), 0
        while frame is not user and frame.f_back is not None:
            frame, depth = frame.f_back, depth + 1
        site, instruction = user.f_code, user.f_lasti
        words, term = text.encode(errors="replace"), _term(code, keys)
        kept = b"" if items else words
        call = PreparedCall(self._texts, term, site, instruction, depth, kept)
        self._interned[code, keys, id(site), instruction] = call
        self._write_text(code, keys, words)
        if items:
            lo = _ITEMS_FROM + self._lists % _LISTS * _ITEMS.size
            _ITEMS.pack_into(self._page, lo, self._texts, items.encode(errors="replace"))
            self._lists += 1
        return call

    def _write_text(self, code: int, keys: int, words: bytes) -> None:
        """Write a text to the next row of the page."""
        lo = _TEXTS_FROM + self._texts % _TEXTS * _TEXT.size
        _TEXT.pack_into(self._page, lo, code, keys, words)
        self._texts += 1


def append_call(page: memoryview, index: int, text: int, term: int, digest: int) -> int:
    """Append a call to a page, which neighbours read; return the next digest.

    Parameters
    ----------
    page : memoryview
    index : int
        The call's index, from 1.
    text : int
        Index of its text.
    term : int
        What the call adds to the digest.
    digest : int
    """
    # The index is stored first and the count last: a neighbour never takes an old row for it.
    lo = _COUNT_BYTES + index % CALLS * _CALL.size
    _CALL.pack_into(page, lo, index, text, concurrency.monotonic_ns())
    concurrency.point("log: call without its count")
    _COUNT.pack_into(page, 0, index)
    return (digest * _DIGEST_FACTOR + term) & MASK


def read_count(page: memoryview) -> int:
    """Return the count of calls of a page, which its rank may be writing to."""
    (count,) = page[:_COUNT_BYTES].cast("q")
    return int(count)


def read_calls(page: memoryview, max_calls: int = CALLS) -> Iterator[RecordedCall]:
    """Yield the last calls of a page, which its rank may be writing to, the latest at the end."""
    count = read_count(page)
    concurrency.point("log: count was read")
    now = concurrency.monotonic_ns()
    lists = dict(_ITEMS.iter_unpack(page[_ITEMS_FROM:NBYTES]))
    for index in range(max(1, count - min(max_calls, CALLS - 1) + 1), count + 1):
        lo = _COUNT_BYTES + index % CALLS * _CALL.size
        found, text_index, when = _CALL.unpack_from(page, lo)
        at = _TEXTS_FROM + text_index % _TEXTS * _TEXT.size
        code, keys, text = _TEXT.unpack_from(page, at)
        # An unchanged index proves that the rank has not begun to overwrite the row.
        if found == index == _CALL.unpack_from(page, lo)[0]:
            items = lists.get(text_index + 1, b"")
            age = (now - when) / 1e9
            yield RecordedCall(index, code, keys, _decode(text), age, _decode(items))


def _decode(text: bytes) -> str:
    """Return a text of the page."""
    return text.rstrip(b"\0").decode(errors="replace")
