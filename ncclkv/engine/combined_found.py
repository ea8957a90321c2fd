"""`CombinedFound`: what several encodings of the same keys have found, as one `Found`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from ncclkv.compress.coding import Found


class CombinedFound(Sequence[int]):
    """`Found` of several encodings, such as those of the arrays of a key.

    A GPU may write the counts later: each look finds those of then.

    Parameters
    ----------
    found : sequence of Found
        Of each encoding.
    keys : int
        Count of the keys.
    count : callable
        ``count(index)`` returns the count of a key, from those of the encodings.

    Attributes
    ----------
    beyond : sequence of int
        The object itself.
    """

    def __init__(self, found: Sequence[Found], keys: int, count: Callable[[int], int]) -> None:
        self._found = found
        self._keys = keys
        self._count = count
        self.beyond = self

    def __len__(self) -> int:
        return self._keys

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        chosen = range(self._keys)[index]
        return self._count(chosen) if isinstance(chosen, int) else [*map(self._count, chosen)]

    def root_mean_square(self) -> float:
        """Return that of the first encoding."""
        return self._found[0].root_mean_square()
