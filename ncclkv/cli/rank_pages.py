"""Pages of a rank's stores, read by its supervisor from the memory of the rank's processes.

The rank takes no part in it, so a rank that is stopped, or that hangs in a call of C, is shown too.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from ncclkv import concurrency

_CLOCK = struct.Struct("!q")
_LENGTH = struct.Struct("!I")

_MOST_BYTES = 1 << 24
"""Limit of one page; a longer one is not read."""


class PageAddress(NamedTuple):
    """Address of a page: the process, and the address and length in bytes in its memory."""

    pid: int
    address: int
    nbytes: int

    @classmethod
    def read(cls, text: str) -> PageAddress | None:
        """Return the address in a text such as ``"17 4096 100"``; None if the text is none."""
        words = text.split()
        if len(words) != len(cls._fields) or not all(word.isdecimal() for word in words):
            return None
        return cls(*map(int, words))

    def __str__(self) -> str:
        return f"{self.pid} {self.address} {self.nbytes}"


def pack(request: str) -> bytes:
    """Return this host's clock, and the pages at the addresses in a request, a line each."""
    addresses = [PageAddress.read(line) for line in request.splitlines()]
    pages = [b"" if address is None else _page(address) for address in addresses]
    parts = [part for page in pages for part in (_LENGTH.pack(len(page)), page)]
    return zlib.compress(b"".join([_CLOCK.pack(concurrency.monotonic_ns()), *parts]), 1)


def _page(address: PageAddress) -> bytes:
    """Return the bytes of a page; empty if they cannot be read."""
    if address.nbytes > _MOST_BYTES:
        return b""
    try:
        with open(f"/proc/{address.pid}/mem", "rb", buffering=0) as memory:
            found = os.pread(memory.fileno(), address.nbytes, address.address)
    except (OSError, OverflowError):  # the process has ended, or has given the memory back
        return b""
    return found if len(found) == address.nbytes else b""


def unpack(data: bytes) -> tuple[int, list[bytes]]:
    """Return the clock in nanoseconds and the pages of `pack`; a page that was not read is empty.

    Raises
    ------
    ValueError
        When the data are not those of `pack`.
    """
    try:
        content = zlib.decompress(data)
        (clock,) = _CLOCK.unpack_from(content)
        return clock, [*_pages(content)]
    except (zlib.error, struct.error) as error:
        raise ValueError(f"no pages: {error}") from None


def _pages(content: bytes) -> Iterator[bytes]:
    at = _CLOCK.size
    while at < len(content):
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        yield content[at : at + length]
        at += length
