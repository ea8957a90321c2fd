"""What ranks must call alike, as numbers that are compared instead of the calls.

A call is two numbers: what is called, and its keys.  The keys of one call are a set: their order in
a list means nothing, so their number is a sum of one number for each.  All calls so far make one
number, the *mark* (`ncclkv.comm.diagnosis.call_log`), which two ranks have alike when they
have made the same calls in the same order; that others have it alike by chance happens once in
some 10^18 times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from ncclkv.table.registry import Key

MASK = 2**63 - 1
"""Of all numbers: they are those that a signed word of 64 bits holds."""

VERBS = (
    "init",
    "reset",
    "broadcast",
    "push",
    "pull",
    "pushpull",
    "group",
    "end of a group",
    "wait",
    "barrier",
    "set_updater",
    "set_optimizer",
    "capture",
    "replay",
    "save",
    "load",
    "save_optimizer_states",
    "load_optimizer_states",
    "uneven",
    "close",
)

_NAMED = 3
_LONGEST = 24
"""Keys that are named in words, and characters of each."""

_VERB_BITS = 8
_READ = 1 << 40


@lru_cache(1024)
def number(verb: str, priority: int = 0) -> int:
    """What is called."""
    return VERBS.index(verb) | (priority << _VERB_BITS) & MASK


def mixed(value: int) -> int:
    """A number that looks like a random one, the same for the same `value`.

    By Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    value = (value + 1) * 0x9E3779B97F4A7C15 & 2**64 - 1
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & 2**64 - 1
    value = (value ^ value >> 27) * 0x94D049BB133111EB & 2**64 - 1
    return (value ^ value >> 31) & MASK


def pushed(index: int) -> int:
    """The number of a key that is pushed, by its place in the registry."""
    return mixed(index)


def read(index: int) -> int:
    """The number of a key that is pulled or waited for."""
    return mixed(_READ + index)


def odd_key(mine: int, theirs: int, numbers: Mapping[int, Key]) -> tuple[Key | None, Key | None]:
    """The key that only this call has, and the one that only the other has, if that is all.

    Parameters
    ----------
    mine, theirs : int
        Numbers of the keys of both.
    numbers : mapping of int to key
        All that may be in them.
    """
    extra = (mine - theirs) & MASK
    if extra in numbers:
        return numbers[extra], None
    if -extra & MASK in numbers:
        return None, numbers[-extra & MASK]
    for value, key in numbers.items():
        other = numbers.get((value - extra) & MASK)
        if other is not None:
            return key, other
    return None, None


def in_words(verb: str, keys: Iterable[Key], priority: int = 0) -> str:
    """A call as a user would write it, or nearly so."""
    names = [repr(key) for key in keys]
    if len(names) > _NAMED:
        names = [*names[:_NAMED], f"... {len(names)} keys"]
    shown = [name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..." for name in names]
    rest = [f"priority={priority}"] if priority else []
    return f"{verb}({', '.join([*shown, *rest])})"
