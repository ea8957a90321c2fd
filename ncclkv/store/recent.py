"""Calls that come again with the very same arrays, as those of a training loop do.

Checking and sorting the arrays of a call takes longer than copying small ones.  So what a call was
made into is kept, until one of its arrays is gone or has become another.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Sequence
from typing import Any

from ncclkv.store.keys import is_list

_MOST = 65536
"""Arrays of calls that are kept; then all are forgotten."""


class Recent:
    """What the last calls were made into, by verb and keys."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, tuple[Any, ...]], _Call] = {}
        self._count = 0

    def find(self, verb: str, key: Any, given: Any) -> tuple[Any, Sequence[Any]] | None:
        """What a call with these very arguments was made into, and its arrays in a row."""
        if is_list(key) != is_list(given):
            return None
        keys, arrays = (tuple(key), given) if is_list(key) else ((key,), [given])
        try:
            call = self._calls.get((verb, keys))
        except TypeError:  # of a key that is none, and will be refused
            return None
        return (call.made, arrays) if call is not None and call.is_of(keys, arrays) else None

    def keep(self, verb: str, key: Any, given: Any, row: Sequence[Any], made: Any) -> None:
        """Keep what a call was made into, if the arrays used, in a `row`, are its own.

        These are NumPy's or CuPy's, then.  Of another library's there is a view in the row, and it
        may change its memory.
        """
        if is_list(key) != is_list(given):
            return
        keys, arrays = (tuple(key), given) if is_list(key) else ((key,), [given])
        if len(row) == len(arrays) and all(map(operator.is_, row, arrays)):
            self._count += len(arrays)
            if self._count > _MOST:
                self.clear()
                self._count = len(arrays)
            self._calls[verb, keys] = _Call(keys, arrays, made, to_write=verb == "pull")

    def clear(self) -> None:
        """Forget all calls."""
        self._calls.clear()
        self._count = 0


class _Call:
    """The arguments of a call, which it does not keep alive, and what it was made into."""

    def __init__(
        self, keys: tuple[Any, ...], arrays: Sequence[Any], made: Any, to_write: bool
    ) -> None:
        self.made = made
        self._to_write = to_write
        self._whole = True
        # A number can be another array's when this one is gone, of which the references tell.
        self._references = [weakref.ref(array, self._gone) for array in arrays]
        self._kinds = list(map(type, keys))
        self._numbers = list(map(id, arrays))
        self._forms = self._forms_of(arrays)

    def _gone(self, reference: Any) -> None:
        self._whole = False

    def is_of(self, keys: tuple[Any, ...], arrays: Sequence[Any]) -> bool:
        """Whether the call has these arguments; ``True`` is not the key 1."""
        return (
            self._whole
            and list(map(id, arrays)) == self._numbers
            and list(map(type, keys)) == self._kinds
            and self._forms_of(arrays) == self._forms
        )

    def _forms_of(self, arrays: Sequence[Any]) -> list[Any]:
        """What can be changed of an array that stays where it is."""
        forms: list[Any] = [
            [array.shape for array in arrays],
            [array.dtype for array in arrays],
        ]
        if self._to_write:
            # CuPy's flags have no such word, for its arrays can always be written.
            forms.append([getattr(array.flags, "writeable", True) for array in arrays])
        return forms
