"""Kept calls: the prepared forms of calls, and what tells whether a form serves a call."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, countOf, eq, itemgetter
from typing import Any, NamedTuple

import numpy as np

from ncclkv.store.keys import EXACT, is_list

# Measured by tracemalloc, rounded up: a call of a list, and each array of the list.
_CALL_BYTES, _ARRAY_BYTES = 3072, 512

Attribute = Callable[[Any], Any]
"""Getter of an attribute that a program can change while an array stays at its address."""

Selection = Callable[[Sequence[Any]], Sequence[Any]]
"""Returns the arrays of a list in another order."""

_dtype_of: Attribute = attrgetter("dtype")
_axes_of: Attribute = attrgetter("ndim")
_shape_of: Attribute = attrgetter("shape")
_in_order: Attribute = attrgetter("flags.carray")
"""True for a writable NumPy array in C order, whose layout follows from its shape."""

_flags_of: Attribute = attrgetter("flags.num")
_CONTIGUOUS, _OWN = 3, 4
"""Flags of a NumPy array: in C or Fortran order; owner of its memory, which no view has."""

Outside = Callable[[Sequence[Any]], bool]
"""Returns whether arrays lie in no bucket and share no memory; may be False needlessly."""


class OneCall:
    """A call of one key with one array, which it does not keep alive."""

    __slots__ = (
        "_dtype",
        "_flags",
        "_key",
        "_kind",
        "_layout",
        "_layout_of",
        "_reference",
        "_shape",
        "made",
    )

    def __init__(
        self, key: Any, array: Any, made: Any, form: ArrayForm | None, *, to_write: bool
    ) -> None:
        self.made = made
        self._kind = type(key)
        self._key = None if self._kind in EXACT else key
        self._flags: int | None = array.flags.num if form else None
        self.refer_to(array)
        self._shape = array.shape
        self._dtype = array.dtype
        self._layout_of = _layout_of([array]) if to_write else None
        self._layout = self._layout_of and self._layout_of(array)

    def is_of_key(self, key: Any, array: Any) -> bool:
        """Return whether the call has this array, and this key, which equals the call's."""
        return (
            type(key) is self._kind  # True is not the key 1
            and (self._key is None or key is self._key)
            and self._reference() is array is not None
            and array.shape == self._shape
            and array.dtype is self._dtype
            and (self._layout_of is None or self._layout_of(array) == self._layout)
        )

    def fits(self, key: Any, array: Any, outside: Outside) -> bool:
        """Return whether the prepared form serves this key with another array."""
        return (
            type(key) is self._kind
            and (self._key is None or key is self._key)
            and type(array) is np.ndarray
            and array.flags.num == self._flags
            and array.shape == self._shape
            and array.dtype == self._dtype
            and bool(self._flags & _OWN or outside([array]))
        )

    @property
    def serves_others(self) -> bool:
        """Return whether the form serves new arrays."""
        return self._flags is not None

    def refer_to(self, array: Any) -> None:
        """Find the call by this array from now on."""
        self._reference = weakref.ref(array)


class ListCall:
    """A call of a list of keys with a list of arrays, which it does not keep alive.

    Comparing each of a thousand small arrays in Python takes as long as copying it.  So the loops
    over a list are NumPy's and those of built-in functions.

    Attributes
    ----------
    made : Any
        The prepared form.
    row_of : callable or None
        Returns the arrays in the order in which the call uses them; None for the order given.
    nbytes : int
        An estimate of the memory that the call takes, with its prepared form.
    """

    def __init__(
        self,
        keys: list[Any],
        arrays: Sequence[Any],
        made: Any,
        order: Sequence[int],
        form: ArrayForm | None,
        *,
        to_write: bool,
    ) -> None:
        self.made = made
        in_order = all(arrays[place] is array for place, array in zip(order, arrays, strict=True))
        self.row_of: Selection | None = None if in_order else itemgetter(*order)
        self.nbytes = call_bytes(len(keys))
        self._keys = keys
        self._key_addresses = _addresses(keys)
        self._kinds = list(map(type, keys))
        self._exact = EXACT.issuperset(self._kinds)
        self._form = form
        self._to_write = to_write
        self.refer_to(arrays)
        # The shape of an array of one axis cannot change: NumPy resizes no array with references.
        flat = all(array.ndim == 1 for array in arrays)
        attributes = [_dtype_of, _axes_of if flat else _shape_of]
        if to_write:
            attributes += filter(None, [_layout_of(arrays)])
        self._attributes = [(each, *_intern(map(each, arrays))) for each in attributes]

    @property
    def serves_others(self) -> bool:
        """Return whether the form serves new arrays."""
        return self._form is not None

    def refer_to(self, arrays: Sequence[Any]) -> None:
        """Find the call by these arrays from now on."""
        # A new array may get the address of a freed array; the references detect this.
        present = [True]

        def freed(reference: object) -> None:
            present.clear()

        # Ctrl-C between two of these must not leave addresses without their references.
        self._present: list[bool] = []
        self._references = [weakref.ref(array, freed) for array in arrays]
        self._addresses = _addresses(arrays)
        self._present = present

    def is_of_list(self, keys: Sequence[Any], arrays: Any) -> bool:
        """Return whether the call has these keys and these arrays."""
        if not (isinstance(arrays, (list, tuple)) and self._present):
            return False
        count = len(keys)
        if count != len(self._keys):
            return False
        same_objects = np.fromiter(keys, object, count).tobytes() == self._key_addresses
        if not same_objects and not self._has_equal(keys):
            return False
        if np.fromiter(arrays, object, len(arrays)).tobytes() != self._addresses:
            return False
        for attribute, had, uniform in self._attributes:
            if uniform:
                if countOf(map(attribute, arrays), had[0]) != len(had):
                    return False
            elif not all(map(eq, map(attribute, arrays), had)):
                return False
        return True

    def fits(self, keys: Sequence[Any], arrays: Any, outside: Outside) -> bool:
        """Return whether the prepared form serves these keys with other arrays."""
        form = self._form
        if form is None or not (is_list(arrays) and len(arrays) == len(self._references)):
            return False
        if _addresses(keys) != self._key_addresses and not self._has_equal(keys):
            return False
        if countOf(map(type, arrays), np.ndarray) != len(arrays):
            return False
        if not all(list(map(attribute, arrays)) == had for attribute, had in form.attributes):
            return False
        if not form.own:
            return outside(arrays)
        return not self._to_write or len({*map(id, arrays)}) == len(arrays)

    def _has_equal(self, keys: Sequence[Any]) -> bool:
        """Return whether the call has keys like these, of the same types."""
        # True equals the key 1, and an object of a str's subclass may equal any str.
        return self._exact and list(map(type, keys)) == self._kinds and self._keys == list(keys)


class ArrayForm(NamedTuple):
    """The flags, dtypes and shapes of NumPy arrays, in C or Fortran order.

    Attributes
    ----------
    attributes : list of (callable, list)
        Getters, and the value of each array.
    own : bool
        Whether each array owns its memory: others like them share none, and lie in no bucket.
    """

    attributes: list[tuple[Attribute, list[Any]]]
    own: bool


def form_of(arrays: Sequence[Any]) -> ArrayForm | None:
    """Return the form of arrays; None if one is a view with strides, or of another library."""
    if countOf(map(type, arrays), np.ndarray) != len(arrays):
        return None
    getters = _flags_of, _dtype_of, _shape_of
    attributes = [(each, _intern(map(each, arrays))[0]) for each in getters]
    flags = set(attributes[0][1])
    if not all(each & _CONTIGUOUS for each in flags):
        return None
    return ArrayForm(attributes, all(each & _OWN for each in flags))


def call_bytes(length: int) -> int:
    """Estimate the memory of a kept call of a list, with its prepared form."""
    return _CALL_BYTES + _ARRAY_BYTES * length


def _addresses(items: Sequence[Any]) -> bytes:
    """Return the addresses of objects, which is the ``id`` of each, one after another."""
    return np.fromiter(items, object, len(items)).tobytes()


def _intern(values: Iterable[Any]) -> tuple[list[Any], bool]:
    """Return the values, with one object for equal values, and whether all are equal."""
    one_of: dict[Any, Any] = {}
    each = [one_of.setdefault(value, value) for value in values]
    return each, len(one_of) == 1


def _layout_of(arrays: Sequence[Any]) -> Attribute | None:
    """Return a getter of the strides and writability of an array; None if neither can change.

    Two results for an array differ if its strides or writability have changed in between.  CuPy's
    arrays are always writable, and their strides cannot be set.
    """
    on_host = [isinstance(array, np.ndarray) for array in arrays]
    if not any(on_host):
        return None
    return _in_order if all(on_host) and all(map(_in_order, arrays)) else _layout


def _layout(array: Any) -> tuple[bool, tuple[int, ...]]:
    """Return whether an array can be written, and its strides."""
    return getattr(array.flags, "writeable", True), array.strides
