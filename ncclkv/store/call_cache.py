"""CallCache: prepared calls, found again by their keys and their arrays.

The calls of a training loop repeat.  Checking and sorting their arrays takes longer than copying
small arrays.  So the prepared form of a call is kept, and serves the same call again until one of
its arrays is freed or changed.  The form then serves new NumPy arrays of the same dtypes, shapes
and flags, which programs make in each step.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ncclkv.arrays.memory import same_memory
from ncclkv.arrays.torch import plain_views
from ncclkv.store.kept_calls import ListCall, OneCall, Outside, form_of
from ncclkv.store.keys import flattened, is_list
from ncclkv.table.key_names import SHOWN

BYTES = 16 * 1024 * 1024
"""Limit of the memory of cached calls of lists; `BYTES_A_KEY` is added for each key."""

BYTES_A_KEY = 1024
"""Bytes for each key: enough to cache a push and a pull of all keys, the calls of one step."""

_FIRST, _OTHERS = "no call of these keys was kept", "its arrays differ from those of the kept call"
_ALONE = "new arrays are served only if each is NumPy's, contiguous, given once and in no bucket"


@dataclass(slots=True)
class Counts:
    """Calls of a verb, counted.

    Attributes
    ----------
    prepared : int
        Calls that a kept form has served.
    alike : int
        Those of them with new arrays.
    anew : int
        Calls that were checked anew.
    keys : sequence of keys
        The first keys of the last call that was checked anew.
    length : int
        The count of its keys.
    reason : str
        Why no kept form has served it.
    """

    prepared: int = 0
    alike: int = 0
    anew: int = 0
    keys: Sequence[Any] = ()
    length: int = 0
    reason: str = ""


class CallCache:
    """Prepared forms of the last calls, by verb and keys.

    For each key and verb at most one call of this key alone is cached, in about 2 KiB.  Calls of
    lists are limited by bytes, and the oldest are evicted.

    Parameters
    ----------
    keys : sized
        The keys of the store, whose count sets the limit.

    Attributes
    ----------
    epoch : weakref
        The object under which the cached calls were checked, such as the update rule.
    counts : dict of Counts
        The calls of each verb.
    """

    def __init__(self, keys: Sized) -> None:
        self._keys = keys
        self._ones: defaultdict[str, dict[Hashable, OneCall]] = defaultdict(dict)
        self._lists: dict[tuple[str, tuple[Hashable, ...]], ListCall] = {}
        self._last: dict[str, ListCall] = {}
        self._bytes = 0
        self.counts: defaultdict[str, Counts] = defaultdict(Counts)
        # Weak: an epoch may be a rule, which holds an optimizer's state.
        self.epoch: Callable[[], object] = lambda: None

    def enter(self, epoch: object) -> None:
        """Drop the calls of another epoch, and begin this epoch."""
        self.clear()
        self.epoch = weakref.ref(epoch)

    def find_call(
        self, verb: str, key: Any, given: Any, epoch: object = None
    ) -> tuple[Any, Sequence[Any]] | None:
        """Return the prepared form of a call with the same objects as arguments, and its arrays.

        Parameters
        ----------
        verb : str
        key, given : Any
        epoch : object, optional
            Calls of another epoch are dropped: a new updater may refuse their keys, and a capture
            must see every array.
        """
        if epoch is not None and self.epoch() is not epoch:
            self.enter(epoch)
        if isinstance(key, (list, tuple)):
            call = self._last.get(verb)
            if call is None or not call.is_of_list(key, given):
                call = self._earlier(verb, key, given)
            if call is None:
                return None
            self.counts[verb].prepared += 1
            return call.made, given if call.row_of is None else call.row_of(given)
        try:
            one = self._ones[verb].get(key)
        except TypeError:  # not a key: the checks refuse it
            return None
        if one is None or not one.is_of_key(key, given):
            return None
        self.counts[verb].prepared += 1
        return one.made, (given,)

    def _earlier(self, verb: str, keys: Sequence[Any], given: Any) -> ListCall | None:
        """Return a call of a list before the verb's last call, or None."""
        try:
            call = self._lists.get((verb, tuple(keys)))
        except TypeError:  # an item is not a key: the checks refuse it
            return None
        if call is None or call is self._last.get(verb) or not call.is_of_list(keys, given):
            return None
        self._last[verb] = call
        return call

    def find_alike(
        self, verb: str, key: Any, given: Any, outside: Outside
    ) -> tuple[Any, Sequence[Any]] | None:
        """Return the prepared form of a call of these keys, if new arrays fit it; keep the arrays.

        A call with a list of arrays for a key is found as a call that repeats the key.  Tensors of
        torch are returned as views.

        Parameters
        ----------
        verb : str
        key, given : Any
        outside : callable
            Called with arrays that are views, which may lie anywhere.
        """
        names, nested = key, given
        key, given = flattened(names, nested)
        if given is not nested and (found := self.find_call(verb, key, given)) is not None:
            return found
        one, call, counts = None, None, self.counts[verb]
        # Unhashable items are no keys: the checks refuse them.
        with suppress(TypeError):
            if is_list(key):
                call = self._lists.get((verb, tuple(key)))
            else:
                one = self._ones[verb].get(key)
        kept = one or call
        if kept is not None and kept.serves_others:
            plain = plain_views(given)
            given = given if plain is None else plain
        if one is not None and one.fits(key, given, outside):
            found = one.made, (given,)
            one.refer_to(given)
        elif call is not None and call.fits(key, given, outside):
            found = call.made, given if call.row_of is None else call.row_of(given)
            call.refer_to(given)
            self._last[verb] = call
        else:
            counts.anew += 1
            names = names if is_list(names) else [names]
            counts.keys, counts.length = names[:SHOWN], len(names)
            counts.reason = _FIRST if kept is None else _OTHERS if kept.serves_others else _ALONE
            return None
        counts.prepared += 1
        counts.alike += 1
        return found

    def keep_call(
        self,
        verb: str,
        key: Any,
        given: Any,
        row: Sequence[Any],
        made: Any,
        *,
        serves_others: bool = True,
    ) -> None:
        """Keep the prepared form of a call, if its arrays are NumPy's or CuPy's.

        Parameters
        ----------
        verb : str
        key, given : Any
            The keys and the arrays as the program gave them.
        row : sequence of ndarray
            The arrays as the call uses them, in any order.  An array of another library has a view
            here, whose memory the library may replace.  So of a call with tensors of torch only the
            form is kept, and a call with arrays of other libraries is not kept.
        made : Any
            The prepared form.
        serves_others : bool
            Whether the form serves other arrays, which lie in no bucket.
        """
        key, given = flattened(key, given)
        several = is_list(key)
        arrays = given if several else [given]
        plain = plain_views(arrays) if serves_others else None
        if plain is not None:
            arrays, row = plain, same_memory(row, plain)
        places = {id(array): place for place, array in enumerate(arrays)}
        order = [places.get(id(array), -1) for array in row]
        if len(row) != len(arrays) or {*order} != {*places.values()}:
            self.note(verb, _reason(arrays, row))
            return
        to_write = verb != "push"
        # Places of an array that is given twice do not tell which key it is for.
        serves_others = serves_others and len(places) == len(arrays)
        form = form_of(arrays) if serves_others else None
        if several:
            call = ListCall(list(key), arrays, made, order, form, to_write=to_write)
            self._add((verb, tuple(key)), call)
        else:
            self._ones[verb][key] = OneCall(key, arrays[0], made, form, to_write=to_write)

    def note(self, verb: str, reason: str) -> None:
        """Note why the last call of a verb was not kept."""
        self.counts[verb].reason = reason

    def _add(self, name: tuple[str, tuple[Hashable, ...]], call: ListCall) -> None:
        """Keep a call of a list in place of the earlier call of its keys; evict the oldest."""
        self._drop(name)
        self._lists[name] = self._last[name[0]] = call
        self._bytes += call.nbytes
        limit = BYTES + BYTES_A_KEY * len(self._keys)
        while self._bytes > limit and len(self._lists) > 1:
            self._drop(next(iter(self._lists)))

    def _drop(self, name: tuple[str, tuple[Hashable, ...]]) -> None:
        """Drop a call of a list, if it is cached; a verb's last call is still found."""
        call = self._lists.pop(name, None)
        if call is not None:
            self._bytes -= call.nbytes

    def clear(self) -> None:
        """Drop all calls."""
        self._ones.clear()
        self._lists.clear()
        self._last.clear()
        self._bytes = 0


def _reason(given: Sequence[Any], row: Sequence[Any]) -> str:
    """Return why a call cannot be kept, which uses other arrays than were given."""
    used = set(map(id, row))
    odd = next((array for array in given if id(array) not in used), None)
    if isinstance(odd, np.ndarray) and type(odd) is np.ndarray:
        return "an array lies in a bucket or is converted, so that a copy is made"
    kind = type(odd)
    return f"{kind.__module__}.{kind.__qualname__} is no plain array of NumPy or CuPy"
