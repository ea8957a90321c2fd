"""Calls that come again with the very same arrays, as those of a training loop do.

Checking and sorting the arrays of a call takes longer than copying small ones.  So what a call was
made into is kept, until one of its arrays is gone or has become another.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from operator import attrgetter, countOf, eq, is_
from typing import Any

import numpy as np

from ncclkv.store.keys import is_list

_MOST = 65536
"""Arrays of calls that are kept; then all are forgotten."""

Form = Callable[[Any], Any]
"""What can be changed of an array that stays where it is."""

_dtype_of: Form = attrgetter("dtype")
_axes_of: Form = attrgetter("ndim")
_shape_of: Form = attrgetter("shape")
_in_order: Form = attrgetter("flags.carray")
"""Whether a NumPy array can be written, and is in C order: then its shape says all the rest."""


class Recent:
    """What the last calls were made into, by verb and keys."""

    def __init__(self) -> None:
        self._ones: dict[tuple[str, Hashable], _One] = {}
        self._lists: dict[tuple[str, tuple[Hashable, ...]], _List] = {}
        self._last: dict[str, _List] = {}
        self._count = 0

    def find(self, verb: str, key: Any, given: Any) -> tuple[Any, Sequence[Any]] | None:
        """What a call with these very arguments was made into, and its arrays in a row."""
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
        self._count += len(arrays)
        if self._count > _MOST:
            self.clear()
            self._count = len(arrays)
        to_write = verb != "push"
        if several:
            call = _List(list(key), arrays, made, to_write=to_write)
            self._lists[verb, tuple(key)] = self._last[verb] = call
        else:
            self._ones[verb, key] = _One(key, given, made, to_write=to_write)

    def clear(self) -> None:
        """Forget all calls."""
        self._ones.clear()
        self._lists.clear()
        self._last.clear()
        self._count = 0


class _One:
    """A call of one key with one array, which it does not keep alive."""

    __slots__ = ("_dtype", "_kind", "_layout", "_layout_of", "_reference", "_shape", "made")

    def __init__(self, key: Any, array: Any, made: Any, *, to_write: bool) -> None:
        self.made = made
        self._kind = type(key)
        self._reference = weakref.ref(array)
        self._shape = array.shape
        self._dtype = array.dtype
        self._layout_of = _layout_of([array]) if to_write else None
        self._layout = self._layout_of and self._layout_of(array)

    def is_of(self, key: Any, array: Any) -> bool:
        """Whether the call has this key, which equals its own, and this array."""
        return (
            type(key) is self._kind  # True is not the key 1
            and self._reference() is array is not None
            and array.shape == self._shape
            and array.dtype is self._dtype
            and (self._layout_of is None or self._layout_of(array) == self._layout)
        )


class _List:
    """A call of a list of keys with a list of arrays, which it does not keep alive.

    Looking at each of a thousand small arrays takes as long as copying it.  So a list is looked at
    in a few rows, and the loops along them are not Python's.
    """

    def __init__(
        self, keys: list[Any], arrays: Sequence[Any], made: Any, *, to_write: bool
    ) -> None:
        self.made = made
        self._keys = keys
        # What equals a string is one; what equals the key 1 may be True.
        self._kinds = None if {*map(type, keys)} == {str} else list(map(type, keys))
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
        """Whether the call has these keys."""
        try:
            # No copy of a list: that would take longer than comparing it.
            equal = self._keys == (keys if type(keys) is list else list(keys))
        except Exception:  # of what is no key, and need not bear to be compared
            return False
        return equal and (self._kinds is None or list(map(type, keys)) == self._kinds)


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
