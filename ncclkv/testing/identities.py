"""Identities of a world's threads: a new thread may have that of an ended one.

Operating systems give an ended thread's identity to a new thread at once, perhaps of another rank.
"""

from __future__ import annotations

from itertools import count
from random import Random

_RATES = (0.0, 0.5, 1.0)
"""Probabilities with which a new thread takes the identity of an ended one; a world draws its."""

_new = count(1 << 40)
"""Identities that no thread has had, in this world or in an earlier one."""


class Identities:
    """The identities of a world's threads.

    Parameters
    ----------
    seed : int
        Of the draws, which are no draws of the world's turns: a trace does not depend on them.
    """

    def __init__(self, seed: int) -> None:
        self._draw = Random(f"identities {seed}").random
        self._rate = _RATES[int(self._draw() * len(_RATES))]
        self._free: list[int] = []

    def take(self) -> int:
        """Return the identity of a thread that begins."""
        if self._free and self._draw() < self._rate:
            return self._free.pop(int(self._draw() * len(self._free)))
        return next(_new)

    def free(self, identity: int) -> None:
        """Note that the thread of an identity has ended."""
        self._free.append(identity)
