"""Calls that come again with the very same arrays, as those of a training loop do.

Checking and sorting the arrays of a call takes longer than copying small ones.  So what a call was
made into is kept, until one of its arrays is gone or has become another.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence, Sized
from functools import partial
from operator import attrgetter, countOf, eq, is_
from typing import Any

import numpy as np

from ncclkv.store.keys import is_list

BYTES = 16 * 1024 * 1024
"""Limit of the memory of kept calls of lists, to which `BYTES_A_KEY` is added for each key."""

BYTES_A_KEY = 1024
"""Room for a push and a pull of every key, so that the calls of one step never evict each other."""

# Measured by tracemalloc, rounded up: a call of a list, and each array of one.
_CALL_BYTES, _ARRAY_BYTES = 2560, 400

_EXACT = frozenset({int, str, *(np.dtype(code).type for code in "bBhHiIlLqQ")})
"""Types of keys that compare equal only if they name the same key."""

Form = Callable[[Any], Any]
"""What can be changed of an array that stays where it is."""

_dtype_of: Form = attrgetter("dtype")
_axes_of: Form = attrgetter("ndim")
_shape_of: Form = attrgetter("shape")
_in_order: Form = attrgetter("flags.carray")
"""Whether a NumPy array can be written, and is in C order: then its shape says all the rest."""


class CallCache:
    """Prepared forms of the last calls, by verb and keys.

    Calls of one key are limited by the keys: a key has one entry a verb, of about 2 KiB.  Calls of
    lists are limited by bytes, and the oldest are evicted.

    Parameters
    ----------
    keys : sized
        The keys of the store, whose number sets the limit.

    Attributes
    ----------
    epoch : weakref
        The object that the kept calls were checked under, such as the update rule.
    """

    def __init__(self, keys: Sized) -> None:
        self._keys = keys
        self._ones: dict[tuple[str, Hashable], _One] = {}
        self._lists: dict[tuple[str, tuple[Hashable, ...]], _List] = {}
        self._last: dict[str, _List] = {}
        self._bytes = 0
        # Weak: an epoch may be a rule, which holds an optimizer's state.
        self.epoch: Callable[[], object] = lambda: None

    def enter(self, epoch: object) -> None:
        """Forget the calls of another epoch; calls are kept and found in this one from now on."""
        self.clear()
        self.epoch = weakref.ref(epoch)

    def find(self, verb: str, key: Any, given: Any) -> tuple[Any, Sequence[Any]] | None:
        """Return what a call with these very arguments was made into, and its arrays."""
        if isinstance(key, (list, tuple)):
            call = self._last.get(verb)
            if call is None or not call.is_of(key, given):
                call = self._earlier(verb, key, given)
            return None if call is None else (call.made, given)
        try:
            one = self._ones.get((verb, key))
        except TypeError:  # of a key that is none, and will be refused
            return None
        return (one.made, (given,)) if one is not None and one.is_of(key, given) else None

    def _earlier(self, verb: str, keys: Sequence[Any], given: Any) -> _List | None:
        """A call of a list that is not the verb's last one."""
        try:
            call = self._lists.get((verb, tuple(keys)))
        except TypeError:  # of a list of what is no key, and will be refused
            return None
        if call is None or call is self._last.get(verb) or not call.is_of(keys, given):
            return None
        self._last[verb] = call
        return call

    def keep(self, verb: str, key: Any, given: Any, row: Sequence[Any], made: Any) -> None:
        """Keep what a call was made into, if the arrays used, in a `row`, are its own.

        These are NumPy's or CuPy's, then.  Of another library's there is a view in the row, and it
        may change its memory.
        """
        several = is_list(key)
        if several != is_list(given):
            return
        arrays = given if several else [given]
        if len(row) != len(arrays) or not all(map(is_, row, arrays)):
            return
        to_write = verb != "push"
        if several:
            self._add((verb, tuple(key)), _List(list(key), arrays, made, to_write=to_write))
        else:
            self._ones[verb, key] = _One(key, given, made, to_write=to_write)

    def _add(self, name: tuple[str, tuple[Hashable, ...]], call: _List) -> None:
        """Keep a call of a list in place of an earlier one of its keys; evict the oldest."""
        self._drop(name)
        self._lists[name] = self._last[name[0]] = call
        self._bytes += call.nbytes
        limit = BYTES + BYTES_A_KEY * len(self._keys)
        while self._bytes > limit and len(self._lists) > 1:
            self._drop(next(iter(self._lists)))

    def _drop(self, name: tuple[str, tuple[Hashable, ...]]) -> None:
        """Forget a call of a list, if it is kept; a verb's last call is still found."""
        call = self._lists.pop(name, None)
        if call is not None:
            self._bytes -= call.nbytes

    def clear(self) -> None:
        """Forget all calls."""
        self._ones.clear()
        self._lists.clear()
        self._last.clear()
        self._bytes = 0


class _One:
    """A call of one key with one array, which it does not keep alive."""

    __slots__ = ("_dtype", "_key", "_kind", "_layout", "_layout_of", "_reference", "_shape", "made")

    def __init__(self, key: Any, array: Any, made: Any, *, to_write: bool) -> None:
        self.made = made
        self._kind = type(key)
        self._key = None if self._kind in _EXACT else key
        self._reference = weakref.ref(array)
        self._shape = array.shape
        self._dtype = array.dtype
        self._layout_of = _layout_of([array]) if to_write else None
        self._layout = self._layout_of and self._layout_of(array)

    def is_of(self, key: Any, array: Any) -> bool:
        """Whether the call has this key, which equals its own, and this array."""
        return (
            type(key) is self._kind  # True is not the key 1
            and (self._key is None or key is self._key)
            and self._reference() is array is not None
            and array.shape == self._shape
            and array.dtype is self._dtype
            and (self._layout_of is None or self._layout_of(array) == self._layout)
        )


class _List:
    """A call of a list of keys with a list of arrays, which it does not keep alive.

    `nbytes` estimates the memory that it takes, with what it was made into.

    Looking at each of a thousand small arrays takes as long as copying it.  So a list is looked at
    in a few rows, and the loops along them are not Python's.
    """

    def __init__(
        self, keys: list[Any], arrays: Sequence[Any], made: Any, *, to_write: bool
    ) -> None:
        self.made = made
        self.nbytes = call_bytes(len(keys))
        self._keys = keys
        self._key_addresses = _addresses(keys)
        self._kinds = list(map(type, keys))
        self._exact = _EXACT.issuperset(self._kinds)
        # An address can be another array's when this one is gone, of which the references tell.
        self._present = [True]
        gone = partial(_clear, self._present)
        self._references = [weakref.ref(array, gone) for array in arrays]
        self._addresses = _addresses(arrays)
        # An array of one axis and a dtype has one shape: NumPy resizes none that is referred to.
        flat = all(array.ndim == 1 for array in arrays)
        forms = [_dtype_of, _axes_of if flat else _shape_of]
        if to_write:
            forms += filter(None, [_layout_of(arrays)])
        self._forms = [(form, *_alike(map(form, arrays))) for form in forms]

    def is_of(self, keys: Sequence[Any], arrays: Any) -> bool:
        """Whether the call has these keys and these arrays."""
        if not (isinstance(arrays, (list, tuple)) and self._present and self._is_of_keys(keys)):
            return False
        if _addresses(arrays) != self._addresses:
            return False
        for form, had, alike in self._forms:
            if alike:
                if countOf(map(form, arrays), had[0]) != len(had):
                    return False
            elif not all(map(eq, map(form, arrays), had)):
                return False
        return True

    def _is_of_keys(self, keys: Sequence[Any]) -> bool:
        """Return whether the call has these keys, and not only what equals them."""
        if len(keys) != len(self._keys):
            return False
        if _addresses(keys) == self._key_addresses:
            return True
        # True equals the key 1, and an object of a str's subclass may equal any str.
        return self._exact and list(map(type, keys)) == self._kinds and self._keys == list(keys)


def call_bytes(length: int) -> int:
    """Estimate the memory of a kept call of a list: itself, and what it was made into."""
    return _CALL_BYTES + _ARRAY_BYTES * length


def _clear(items: list[Any], reference: object) -> None:
    """Empty a list when what a reference refers to is gone."""
    items.clear()


def _addresses(items: Sequence[Any]) -> bytes:
    """Where objects are, which is the ``id`` of each, all in one piece."""
    return np.fromiter(items, object, len(items)).tobytes()


def _alike(forms: Iterable[Any]) -> tuple[list[Any], bool]:
    """The forms of arrays, equal ones as one object, and whether all are equal."""
    one_of: dict[Any, Any] = {}
    each = [one_of.setdefault(form, form) for form in forms]
    return each, len(one_of) == 1


def _layout_of(arrays: Sequence[Any]) -> Form | None:
    """What tells whether arrays can be written, and in which order; None where nothing can change.

    CuPy's have no flag for the one, and let nobody change the other.
    """
    on_host = [isinstance(array, np.ndarray) for array in arrays]
    if not any(on_host):
        return None
    return _in_order if all(on_host) and all(map(_in_order, arrays)) else _layout


def _layout(array: Any) -> tuple[bool, tuple[int, ...]]:
    """Whether an array can be written, and the steps between its elements."""
    return getattr(array.flags, "writeable", True), array.strides
