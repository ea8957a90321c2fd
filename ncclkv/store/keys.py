"""Keys: converts the forms in which programs give keys and arrays to one form."""

from __future__ import annotations

from collections.abc import Iterable
from reprlib import repr as shortened
from typing import Any, TypeAlias

import numpy as np

from ncclkv.arguments import MAX_BITS, too_long
from ncclkv.errors import KeyTypeMismatch, UsageError
from ncclkv.table.registry import Key

EXACT = frozenset({int, str, *(np.dtype(code).type for code in "bBhHiIlLqQ")})
"""Types of keys that compare equal only if they name the same key."""

_LISTS = frozenset({list, tuple})

Singles: TypeAlias = list[tuple[Key, Any]]
"""Keys in the order given, each with its only array."""


def one_key(key: Any) -> Key:
    """Return a key as an int or a str; NumPy's integers become ints.

    A key of a subclass, such as a member of ``class Name(str, Enum)``, becomes its characters or
    value, not the text that the subclass prints.
    """
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, (int, np.integer)) and not isinstance(key, (bool, np.bool_)):
        if too_long(key):
            raise KeyTypeMismatch(
                f"a key is an int of {int(key).bit_length():,} bits; give one of at most "
                f"{MAX_BITS:,}, or a str"
            )
        return int(key)
    raise KeyTypeMismatch(
        f"key {shortened(key)} is a {type(key).__name__}; keys are int or str{_advice(key)}"
    )


def _advice(key: Any) -> str:
    """Return advice on an object that is not a key."""
    if isinstance(key, (bytes, bytearray)):
        return "; decode it"
    if isinstance(key, (set, frozenset)):
        # A set of str has another order in each process.
        return ", or a list of them; give sorted(...) of it"
    if isinstance(key, Iterable) and not is_list(key):
        return ", or a list of them; give list(...) of it"
    return ""


def is_list(item: Any) -> bool:
    """Return whether `item` stands for several keys or arrays."""
    return isinstance(item, (list, tuple))


def key_list(key: Any) -> list[Key]:
    """Return a key, or a list of keys, as a list of keys of one kind."""
    keys = [one_key(item) for item in key] if is_list(key) else [one_key(key)]
    for other in keys[1:]:
        if type(other) is not type(keys[0]):
            raise KeyTypeMismatch(
                f"keys {keys[0]!r} and {other!r} of one call have two types; use int or str"
            )
    return keys


def pairs(verb: str, key: Any, arrays: Any) -> list[tuple[Key, list[Any]]]:
    """Pair keys with arrays.

    A key takes an array, or a list of arrays.  A list of keys takes a list of the same length, with
    an array or a list of arrays for each key.
    """
    keys = key_list(key)
    if not is_list(key):
        return [(keys[0], _several(verb, keys[0], arrays))]
    if not is_list(arrays):
        raise UsageError(
            f"{verb} of a list of {len(keys)} keys takes a list of as many arrays, "
            f"not a {type(arrays).__name__}"
        )
    if len(arrays) != len(keys):
        raise UsageError(
            f"{verb} of {len(keys)} keys was given {len(arrays)} arrays; give one item for each "
            f"key, an array or a list of arrays"
        )
    return [(name, _several(verb, name, item)) for name, item in zip(keys, arrays, strict=True)]


def _several(verb: str, key: Key, arrays: Any) -> list[Any]:
    """Return the arrays of a key as a list."""
    if not is_list(arrays):
        return [arrays]
    if not arrays:
        raise UsageError(
            f"{verb} of key {key!r} was given an empty list; give at least one array", key=key
        )
    return list(arrays)


def flattened(key: Any, arrays: Any) -> tuple[Any, Any]:
    """Return a call with a list of arrays for a key as a call that repeats the key.

    Other calls, and those that `pairs` refuses, are returned as they are.

    Examples
    --------
    >>> flattened(["a", "b"], [[1.0, 2.0], 3.0])
    (['a', 'a', 'b'], [1.0, 2.0, 3.0])
    """
    keys, items = (key, arrays) if is_list(key) else ([key], [arrays])
    if not is_list(items) or len(items) != len(keys) or _LISTS.isdisjoint(map(type, items)):
        return key, arrays
    lists = [item if is_list(item) else [item] for item in items]
    if not all(lists):
        return key, arrays
    repeated = [name for name, each in zip(keys, lists, strict=True) for _ in each]
    return repeated, [array for each in lists for array in each]


def single(verb: str, key: Any, arrays: Any) -> Singles:
    """Pair each key with its only array; refuse several arrays for a key."""
    found = pairs(verb, key, arrays)
    for name, items in found:
        if len(items) != 1:
            raise UsageError(
                f"{verb} of key {name!r} takes one array, not a list of {len(items)}; for an "
                f"array of the list's numbers pass np.asarray(...)",
                key=name,
            )
    return [(name, items[0]) for name, items in found]
