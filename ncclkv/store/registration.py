"""Verbs on keys: giving them their first or a new value, and looking at their memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ncclkv.arguments import check_length, nearest
from ncclkv.arrays.dtypes import check_dtype
from ncclkv.engine.bucket_state import Array
from ncclkv.errors import UsageError
from ncclkv.store import check
from ncclkv.store.agreement import from_rank, propose
from ncclkv.store.core import Core
from ncclkv.store.keys import one_key, pairs, single
from ncclkv.store.session import BLOCKS
from ncclkv.table.registry import Key, KeySpec
from ncclkv.typing import ArrayLike, Arrays, KeyLike, Keys, KeyT, Op

_OPS = ("sum", "avg", "max", "min")


@dataclass(frozen=True)
class Assignment:
    """Values for keys of which all ranks will get rank 0's.

    Attributes
    ----------
    specs : list of KeySpec
        New keys.
    first : list of ndarray
        Their values.
    known : dict of ndarray by key
        New values of keys that the store has.
    """

    specs: list[KeySpec]
    first: list[Array]
    known: dict[Key, Array]


class TableVerbs(Core):
    """``init``, ``reset``, ``value`` and ``grad_view``."""

    def init(self, key: KeyLike | Keys[KeyT], value: ArrayLike | Arrays, *, op: Op = "sum") -> None:
        """Give keys their first value, rank 0's on every rank; collective.

        Parameters
        ----------
        key : int or str, or list of them
            Of one kind throughout a store.
        value : array, or list of arrays
            One for a key: any shape, of a boolean, integer, floating or complex dtype.  It is
            copied.  Other ranks than 0 give it for its shape and dtype.
        op : {"sum", "avg", "max", "min"}
            How pushes are reduced over ranks.  A sum of bool is a logical or; ``avg`` divides the
            sum over ranks by their number, integers toward zero.

        Raises
        ------
        KeyAlreadyInitialized
            When a key has a value: see `reset`.
        SpecMismatch
            On every rank, when they disagree on names, shapes, dtypes or op.
        OutOfMemory
            On every rank, when a node has not the host memory for the keys' buckets.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> with ncclkv.create("local") as kv:
        ...     kv.init(3, np.full((2, 3), 2.0))
        ...     kv.init(["w", "b"], [np.ones(2), np.zeros(1)])
        Traceback (most recent call last):
            ...
        ncclkv.errors.KeyTypeMismatch: rank 0 of 1: key 'w' is a str, but the keys of this store \
are ints, such as 3; use one kind
        """
        with self._session.verb("init"):
            self._assign("init", lambda: self._new_keys("init", key, value, op))

    def _new_keys(self, verb: str, key: Any, value: Any, op: str = "sum") -> Assignment:
        """The first values of keys, none of which the store may have."""
        found = single(verb, pairs(verb, key, value))
        check_length(f"{verb}: op", op)
        if not (isinstance(op, str) and op in _OPS):
            hint = nearest(op, _OPS)
            raise UsageError(f"{verb}: unknown op {op!r}; {hint}The ops are {', '.join(_OPS)}")
        registry = self._engine.layout.registry
        registry.check_new(name for name, _ in found)
        specs, values = [], []
        for index, (name, given) in enumerate(found, start=len(registry)):
            view = self._kernels.value(given, f"{verb} of key {name!r}")
            dtype = check_dtype(view.dtype, f"{verb} of key {name!r}")
            self._comm.check(op, dtype, f"{verb} of key {name!r}: ")
            specs.append(KeySpec(name, index, view.shape, dtype, op))
            check.updatable(self._engine.rule.check, specs[-1])
            values.append(view.astype(dtype, copy=False))
        return Assignment(specs, values, {})

    def _known_keys(self, verb: str, key: Any, value: Any) -> Assignment:
        """New values of keys, all of which the store must have."""
        values: dict[Key, Array] = {}
        for name, given in single(verb, pairs(verb, key, value)):
            if name in values:
                raise UsageError(f"{verb}: key {name!r} is twice in the list; name it once")
            values[name] = check.value(
                verb, self._engine.layout.registry[name], given, self._kernels
            )
        return Assignment([], [], values)

    def _any_keys(self, verb: str, key: Any, value: Any) -> Assignment:
        """Values of keys, which the store may have or not."""
        found = single(verb, pairs(verb, key, value))
        new = [pair for pair in found if pair[0] not in self._engine.layout.registry]
        old = [pair for pair in found if pair[0] in self._engine.layout.registry]
        first = self._new_keys(verb, [name for name, _ in new], [given for _, given in new])
        known = self._known_keys(verb, [name for name, _ in old], [given for _, given in old])
        return Assignment(first.specs, first.first, known.known)

    def _assign(self, verb: str, make: Callable[[], Assignment]) -> None:
        """Make rank 0's values every rank's, if all ranks mean the same keys."""

        def proposal() -> tuple[Assignment, list[str]]:
            made = make()
            return made, [str(spec) for spec in made.specs] + [repr(name) for name in made.known]

        self._operations.note(verb)
        mine, notes = propose(self._comm, verb, proposal, note=self._engine.layout.sealed)
        self._headroom.check(verb, mine.specs)
        self._seal_alike(verb, notes)
        values = from_rank(self._comm, [*mine.first, *mine.known.values()])
        self._engine.layout.add(mine.specs, values[: len(mine.specs)])
        for name, new in zip(mine.known, values[len(mine.specs) :], strict=True):
            self._engine.replace(name, new)

    def reset(self, key: KeyLike | Keys[KeyT], value: ArrayLike | Arrays) -> None:
        """Replace values by rank 0's, and forget what an optimizer remembers of them; collective.

        Parameters
        ----------
        key : int or str, or list of them
        value : array, or list of arrays
            One for a key, of its shape and dtype.

        Raises
        ------
        KeyNotInitialized, ShapeMismatch, DTypeMismatch
            Before anything changes.
        """
        with self._session.verb("reset"):
            self._assign("reset", lambda: self._known_keys("reset", key, value))

    def value(self, key: KeyLike) -> Array:
        """A key's value as of the last flush of its bucket, without a copy; local.

        Parameters
        ----------
        key : int or str

        Returns
        -------
        ndarray
            Read-only, of the key's shape; valid until this rank's next push into the same bucket.
            On a GPU it is CuPy's, which knows no read-only arrays: to write to it spoils the value.
            A flush that has begun is waited for.  With ``update_on="root"`` other ranks see the
            value as of their last pull, wait or barrier.
        """
        with self._session.verb("value", allowed_inside=BLOCKS):
            name = one_key(key)
            self._place(name)
            view: Array = self._engine.current(name).view()
            return view

    def grad_view(self, key: KeyLike) -> Array:
        """A key's gradient in its bucket: what is pushed from there is not copied; local.

        Parameters
        ----------
        key : int or str

        Returns
        -------
        ndarray
            Writable, of the key's shape.  From a push of the key until its next pull, wait or flush
            it is the store's.  What is written there otherwise stays until the key is pushed, also
            while other ranks push the key and this one counts as zeros or answers.

        Raises
        ------
        UsageError
            When the key has been pushed and not flushed.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> with ncclkv.create("local") as kv:
        ...     kv.init("w", np.zeros(3))
        ...     gradient = kv.grad_view("w")
        ...     gradient[:] = 2
        ...     kv.push("w", gradient)
        ...     kv.pull("w")
        array([2., 2., 2.])
        """
        with self._session.verb("grad_view", allowed_inside=BLOCKS):
            name = one_key(key)
            if self._group is not None and name in self._group:
                raise UsageError(
                    f"grad_view of key {name!r}: it was pushed in this group, so its gradient is "
                    f"the store's; ask for it after the group's end"
                )
            self._place(name)
            return self._engine.gradient(name)

    def _place(self, key: Key) -> None:
        """Give a key its place in a local verb, which breaks nothing where there is no memory."""
        try:
            self._engine.layout[key]
        except MemoryError as error:
            self._session.checks.failed(error)
            raise
