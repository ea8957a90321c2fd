"""Reductions that were asked for before: programs reduce the same arrays again and again."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from ncclkv.comm.messages.progress import HostWork
from ncclkv.comm.types import Apply, Buffer

_MOST = 4096

Make = Callable[[Buffer, Buffer, "Apply | None"], HostWork]
"""``make(send, receive, apply)``: the reduction of two arrays, for which all is prepared."""


class PlanCache:
    """The pairs of arrays that were found fit for a reduction; none of them is kept alive."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], _Pair] = {}

    def find(
        self, send: Buffer, receive: Buffer, op: str, root: int | None, *, sharded_update: bool
    ) -> Make | None:
        """How to reduce these arrays in this way; None when that is not known."""
        pair = self._pairs.get((id(send), id(receive)))
        if pair is None or not pair.is_meant(send, receive, op, root, sharded_update):
            return None
        return pair.make

    def add(
        self,
        send: Buffer,
        receive: Buffer,
        op: str,
        root: int | None,
        make: Make,
        *,
        sharded_update: bool,
    ) -> None:
        """Remember how to reduce two arrays."""
        if len(self._pairs) >= _MOST:
            self._pairs.clear()
        self._pairs[id(send), id(receive)] = _Pair(send, receive, op, root, sharded_update, make)


class _Pair:
    """Two arrays and what is done with them."""

    def __init__(
        self,
        send: Buffer,
        receive: Buffer,
        op: str,
        root: int | None,
        sharded_update: bool,
        make: Make,
    ) -> None:
        self.make = make
        self._send, self._receive = weakref.ref(send), weakref.ref(receive)
        self._shape, self._dtype = send.shape, send.dtype
        self._op, self._root, self._sharded_update = op, root, sharded_update

    def is_meant(
        self, send: Buffer, receive: Buffer, op: str, root: int | None, sharded_update: bool
    ) -> bool:
        """Whether a call means the same; when in doubt not."""
        return (
            self._send() is send
            and self._receive() is receive
            and self._op is op
            and self._root is root
            and self._sharded_update is sharded_update
            # What can change of an array that stays the same object.
            and send.dtype is self._dtype
            and receive.dtype is self._dtype
            and send.shape == self._shape
            and receive.shape == self._shape
            and receive.flags.writeable
        )
