"""Habits: what a seed decides once for its whole world.

With the same habits everywhere, all seeds would be alike, and none would meet the rare in full.  So
one seed changes turns at most points and another hardly ever; one delays messages, another stalls.
Constants of the package are drawn, too: a buffer that is used again too early shows in a ring of
two slots, and not in one of sixteen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from ncclkv import env
from ncclkv.comm.wire import Limits

_MILLISECONDS = 10**6


class _NoSums:
    """Stands for `compiled.sums`: C makes no sums, and Python makes their steps."""

    def __call__(self, *_: object) -> bool:
        return False

    def __repr__(self) -> str:
        return "_NoSums()"


CONSTANTS: Sequence[Sequence[dict[str, Any]]] = (
    ({}, {"sums": _NoSums()}, {"sums": _NoSums(), "RING": 4}),  # C has the ring's size, too
    (
        {},
        {"RINGS": ((16 * 1024, 2), (256 * 1024, 2))},
        {
            "RINGS": ((64, 2), (1024, 2)),
            "INLINE_BYTES": 1024,
            "_COPIES": Limits(1024, 1024),
        },
    ),
    ({}, {"HALF_BYTES": 8192}),
    ({}, {"_EAGER_BYTES": 0}, {"_EAGER_BYTES": 64}),
    ({}, {"SHORT_BYTES": 64}),
    # Code that counts polls means microseconds, and a poll of a world may take a tenth of a second.
    ({"_FIRST_POLLS": 4}, {"_FIRST_POLLS": 0}, {"_FIRST_POLLS": 1}),
    ({"_POLLS_PER_ADVANCE": 4}, {"_POLLS_PER_ADVANCE": 1}),
)
"""Groups of constants of `OWNERS`, and the values that worlds give to them."""

OWNERS = {
    "sums": "ncclkv.kernels.host.compiled",
    "RING": "ncclkv.comm.shm.sequence",
    "RINGS": "ncclkv.comm.shm.staging",
    "INLINE_BYTES": "ncclkv.comm.shm.staging",
    "HALF_BYTES": "ncclkv.comm.shm.staging",
    "_COPIES": "ncclkv.comm.host.reductions",
    "_EAGER_BYTES": "ncclkv.comm.host.threads",
    "SHORT_BYTES": "ncclkv.comm.messages.channel",
    "_FIRST_POLLS": "ncclkv.comm.messages.progress",
    "_POLLS_PER_ADVANCE": "ncclkv.comm.messages.progress",
}
"""The modules that define the constants."""


@dataclass(frozen=True)
class Habits:
    """Rates are probabilities of a point or a message; lengths are nanoseconds.

    Attributes
    ----------
    switch_rate, stall_rate : float
        An actor gives way; an actor loses time.
    longest_stall : int
    by_priority : bool
        Whether the ready actor of the highest priority runs, or any.
    delay_rate : float
    longest_delay : int
    longest_leap : int
        The longest pause while all actors poll in vain.
    constants : dict of str to object
        Values of constants of `OWNERS`.
    variables : dict of str to str
        Environment variables.
    """

    switch_rate: float
    stall_rate: float
    longest_stall: int
    by_priority: bool
    delay_rate: float
    longest_delay: int
    longest_leap: int
    constants: dict[str, Any]
    variables: dict[str, str]


def draw_habits(random: Random) -> Habits:
    """Draw the habits of a seed."""
    pick = _picker(random.random)
    return Habits(
        switch_rate=pick((0.02, 0.1, 0.3, 0.7)),
        stall_rate=pick((0.0, 0.0005, 0.002, 0.008)),
        longest_stall=pick((2, 400, 1000, 2500)) * _MILLISECONDS,
        by_priority=pick((True, False, False)),
        delay_rate=pick((0.0, 0.1, 0.5)),
        longest_delay=pick((20_000, 2 * _MILLISECONDS, 300 * _MILLISECONDS)),
        longest_leap=pick((200, 500, 1000)) * _MILLISECONDS,
        constants=_constants(pick),
        variables=_variables(pick),
    )


def _picker(draw: Callable[[], float]) -> Callable[[Sequence[Any]], Any]:
    """Return a function that picks one of several values."""

    def pick(values: Sequence[Any]) -> Any:
        return values[int(draw() * len(values))]

    return pick


def _constants(pick: Callable[[Sequence[Any]], Any]) -> dict[str, Any]:
    """Draw the values of each group of constants."""
    drawn: dict[str, Any] = {}
    for values in CONSTANTS:
        drawn.update(pick(values))
    return drawn


def _variables(pick: Callable[[Sequence[Any]], Any]) -> dict[str, str]:
    """Draw how ranks share memory, and which of them form a node."""
    memory = pick(("", "", *env.NODE_MEMORY))
    ranks = pick(("", "", "1", "2"))
    drawn = {"NCCLKV_NODE_MEMORY": memory, "NCCLKV_RANKS_PER_NODE": ranks}
    return {name: value for name, value in drawn.items() if value}
