"""Codes of calls, by which ranks check that all of them make the same calls in the same order.

A call is two integers: the code of its verb, and the sum of the codes of its keys.  The sum ignores
the order of a list.  All calls so far make one digest (`ncclkv.comm.diagnosis.call_ring`).
Different histories of calls have equal digests about once in 10^18 comparisons.

A call that its checks refuse is not recorded.  If an optimizer's hyperparameters have changed
since the last push, the next push adds their code to that of its keys.  In other pushes the log
only compares the identity of the rule's hyperparameters (`ncclkv.store.call_log`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b

from ncclkv.table.registry import Key

MASK = 2**63 - 1
"""Mask of every code: the non-negative values of a signed 64-bit word."""

VERBS = (
    "init",
    "reset",
    "broadcast",
    "push",
    "pull",
    "pushpull",
    "group",
    "end of a group",
    "overlap",
    "end of an overlap",
    "early end of an overlap",
    "wait",
    "barrier",
    "set_updater",
    "set_optimizer",
    "set_gradient_compression",
    "capture",
    "replay",
    "save",
    "load",
    "save_optimizer_states",
    "load_optimizer_states",
    "uneven",
    "close",
    "allreduce",
    "allgather",
    "broadcast_object",
    "allgather_object",
)

_MAX_KEYS = 3
_MAX_LENGTH = 24
"""Keys that a description names, and characters of each name."""

_VERB_BITS = 8
_READ = 1 << 40


@lru_cache(1024)
def call_code(verb: str, priority: int = 0) -> int:
    """Return the code of a verb and its priority."""
    return VERBS.index(verb) | (priority << _VERB_BITS) & MASK


def mixed(value: int) -> int:
    """Return a pseudorandom integer, the same for the same `value`.

    By Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    value = (value + 1) * 0x9E3779B97F4A7C15 & 2**64 - 1
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & 2**64 - 1
    value = (value ^ value >> 27) * 0x94D049BB133111EB & 2**64 - 1
    return (value ^ value >> 31) & MASK


def push_code(index: int) -> int:
    """Return the code of a pushed key, by its index in the registry."""
    return mixed(index)


def pull_code(index: int) -> int:
    """Return the code of a key that is pulled or waited for."""
    return mixed(_READ + index)


def text_code(text: str) -> int:
    """Return the code of arguments that are no keys, by a text that has all of them."""
    digest = blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & MASK


def differing_key(
    mine: int, theirs: int, keys_by_code: Mapping[int, Key]
) -> tuple[Key | None, Key | None]:
    """Return the key that only this call has, and the key that only the other call has.

    Both are None when more than one key on either side differs.

    Parameters
    ----------
    mine, theirs : int
        Sums of the codes of the keys of both calls.
    keys_by_code : mapping of int to key
        Keys by their codes.
    """
    extra = (mine - theirs) & MASK
    if extra in keys_by_code:
        return keys_by_code[extra], None
    if -extra & MASK in keys_by_code:
        return None, keys_by_code[-extra & MASK]
    for value, key in keys_by_code.items():
        other = keys_by_code.get((value - extra) & MASK)
        if other is not None:
            return key, other
    return None, None


def describe(verb: str, keys: Iterable[Key], priority: int = 0, arguments: str = "") -> str:
    """Return a text of a call, nearly as a user writes the call."""
    listed = [*keys]
    names = [repr(key) for key in listed[:_MAX_KEYS]]
    if len(listed) > _MAX_KEYS:
        names.append(f"... {len(listed)} keys")
    shown = [name if len(name) <= _MAX_LENGTH else f"{name[:_MAX_LENGTH]}..." for name in names]
    rest = [arguments] if arguments else [f"priority={priority}"] if priority else []
    return f"{verb}({', '.join([*shown, *rest])})"
