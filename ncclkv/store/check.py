"""Checks of a verb's arguments, before anything is copied or sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ncclkv.arguments import check_length
from ncclkv.arrays.dtypes import DType, check_dtype
from ncclkv.arrays.memory import addresses, bounds, identity, lie_apart, share
from ncclkv.arrays.number import as_array, dtype_of, is_number
from ncclkv.comm.base import Communicator
from ncclkv.engine.storage import Array
from ncclkv.errors import DTypeMismatch, NotSupported, ShapeMismatch, UsageError
from ncclkv.kernels.base import Kernels
from ncclkv.store.keys import pairs
from ncclkv.table.registry import Key, KeySpec, Registry


def values(
    verb: str, keys: Any, given: Any, registry: Registry, kernels: Kernels
) -> dict[Key, list[Array]]:
    """Return the arrays to read of each key; those of a repeated key form one list."""
    grouped: dict[Key, list[Array]] = {}
    for key, arrays in pairs(verb, keys, given):
        spec = registry[key]
        try:  # `errors.about` would cost three calls for each key
            checked = [value(verb, spec, array, kernels) for array in arrays]
        except UsageError as error:
            error.key = key
            raise
        grouped.setdefault(key, []).extend(checked)
    return grouped


def value(verb: str, spec: KeySpec, array: Any, kernels: Kernels) -> Array:
    """Return an array to read, of the key's shape and dtype.

    A Python scalar stands for an array if the key has no dimensions.
    """
    if is_number(array):
        array = _array_of(verb, spec, array)
    what = f"{verb} of key {spec.key!r}"
    view = kernels.value(array, what)
    check_shape(what, "the key", spec.shape, view)
    if view.dtype == spec.dtype:
        return view
    if check_dtype(view.dtype, what) != spec.dtype:
        raise DTypeMismatch(
            f"{what}: the key holds {spec.dtype}, the array {view.dtype}; "
            f"{_conversion(array, view.dtype, spec)}"
        )
    return view.astype(spec.dtype)


def _array_of(verb: str, spec: KeySpec, scalar: complex) -> Array:
    """Return an array of shape () with a Python scalar, in the key's dtype."""
    what = f"{verb} of key {spec.key!r}"
    if spec.shape != ():
        raise ShapeMismatch(
            f"{what}: the key has shape {spec.shape}, and a Python {type(scalar).__name__} stands "
            f"for an array of shape () alone; a list means several arrays: pass np.asarray(...)"
        )
    return as_array(scalar, spec.dtype, what)


def first_value(what: str, given: Any, kernels: Kernels) -> Array:
    """Return an array to read, of any shape and of a dtype that stores can hold."""
    if is_number(given):
        given = as_array(given, dtype_of(given), what)
    view = kernels.value(given, what)
    return view.astype(check_dtype(view.dtype, what), copy=False)


def reducible(comm: Communicator, op: str, dtype: DType, what: str) -> None:
    """Refuse a reduction that the store's ranks cannot make; `what` begins the message.

    NCCL has no products of complex elements, and stores have the same ops on every device.
    """
    if op == "prod" and dtype.kind == "c":
        raise NotSupported(
            f"{what}: prod of {dtype}: stores multiply real numbers only; use sum or avg"
        )
    comm.check(op, dtype, f"{what}: ")


def updatable(refuse: Callable[[KeySpec], None], spec: KeySpec) -> None:
    """Refuse a complex key that the optimizer cannot update, before anything is pushed.

    Integer keys may be counters beside the weights; a push of one is refused.
    """
    if spec.dtype.kind == "c":
        refuse(spec)


def _conversion(array: Any, given: DType, spec: KeySpec) -> str:
    """Return the call of the array's library that converts it; name what the call would drop."""
    if type(array).__module__.partition(".")[0] == "torch":
        call = f".to(torch.{spec.dtype})"
    else:
        call = f".astype({str(spec.dtype)!r})"
    lossless = f"or give the key a value of {given} at init"
    if given.kind == "c":
        return f"convert it with .real{call}, which drops imaginary parts, {lossless}"
    if spec.dtype.kind in "biu" and given.kind not in "biu":
        return f"convert it with {call}, which drops fractions, {lossless}"
    return f"convert it with {call}"


def outs(
    verb: str, keys: Any, given: Any, registry: Registry, kernels: Kernels
) -> list[tuple[Key, Array]]:
    """Return the arrays to write, of the keys' shapes, in the order of writing.

    Keys are written in MXNet's update order.  The very same array may stand for several keys, and
    ends with the value of the last.  Other overlaps are refused.
    """
    found = pairs(verb, keys, given)
    order = {key: index for index, key in enumerate(registry.update_order({k for k, _ in found}))}
    found.sort(key=lambda pair: order[pair[0]])
    writes = []
    for key, arrays in found:
        spec = registry[key]
        what = f"{verb} of key {key!r}"
        try:
            for array in arrays:
                view = result_out(what, array, spec.dtype, kernels)
                check_shape(what, "the key", spec.shape, view)
                writes.append((key, view))
        except UsageError as error:
            error.key = key
            raise
    check_disjoint(verb, writes)
    return writes


def result_out(what: str, array: Any, dtype: DType, kernels: Kernels) -> Array:
    """Return an array to write, which can hold values of a dtype after a cast."""
    view = kernels.out(array, what)
    check_dtype(view.dtype, what)
    if dtype.kind == "c" and view.dtype.kind != "c":
        raise DTypeMismatch(
            f"{what}: {dtype} into {view.dtype} would drop the imaginary part; give a complex "
            f"array and take its .real"
        )
    return view


def check_shape(what: str, owner: str, shape: tuple[int, ...], view: Array) -> None:
    """Refuse an array whose shape is not its owner's, such as the key's."""
    if view.shape != shape:
        raise ShapeMismatch(
            f"{what}: {owner} has shape {shape}, the array {view.shape}; give an array of "
            f"{owner}'s shape"
        )


def check_apart(verb: str, outs: Sequence[Array]) -> None:
    """Refuse arrays to write that share memory, and an array that is given twice."""
    places = [identity(view) for view in outs if view.size]
    if len(set(places)) < len(places):
        raise UsageError(f"{verb}: out has an array twice; give each result its own array")
    check_disjoint(verb, [*enumerate(outs)], "items")


def check_disjoint(verb: str, writes: Sequence[tuple[Key, Array]], owners: str = "keys") -> None:
    """Refuse two arrays to write that share memory, and are not the same array."""
    views = [view for _, view in writes]
    begins = addresses(views)
    if begins is not None and lie_apart(views, begins):
        return
    distinct = {identity(view): (key, view) for key, view in writes if view.size}
    extents = sorted(
        ((bounds(view), key, view) for key, view in distinct.values()), key=lambda each: each[0]
    )
    open_extents: list[tuple[int, Key, Array]] = []
    for (low, high), key, view in extents:
        open_extents = [other for other in open_extents if other[0] > low]
        for _, other_key, other in open_extents:
            _refuse_shared(verb, owners, (other_key, other), (key, view))
        open_extents.append((high, key, view))


def _refuse_shared(
    verb: str, owners: str, one: tuple[Key, Array], other: tuple[Key, Array]
) -> None:
    """Refuse two arrays whose extents overlap, unless they interleave and share no element."""
    if share(one[1], other[1]):
        raise UsageError(
            f"{verb}: the arrays to write for {owners} {one[0]!r} and {other[0]!r} overlap in "
            f"memory; give each its own array"
        )


def priority(verb: str, given: Any) -> int:
    """Return a priority as an int: NumPy's unsigned ints cannot be negated."""
    check_length(f"{verb}: priority", given)
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
        raise UsageError(
            f"{verb}: priority={given!r} is not an int; give one, such as 1 to launch before 0"
        )
    return int(given)
