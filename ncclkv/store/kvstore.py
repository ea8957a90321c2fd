"""The store: pushing gradients, pulling values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, overload

from ncclkv.arrays.torch import tensors
from ncclkv.engine.group import Group
from ncclkv.store.capture import CaptureVerbs
from ncclkv.store.checkpoints import CheckpointVerbs
from ncclkv.store.later import LaterVerbs
from ncclkv.store.registration import Assignment, TableVerbs
from ncclkv.store.session import BLOCKS, IN_CAPTURE, IN_GROUP, IN_UNEVEN
from ncclkv.store.transfers import flag, whole_priority
from ncclkv.store.uneven import UnevenVerbs
from ncclkv.store.waiting import WaitVerbs
from ncclkv.table.registry import Key
from ncclkv.typing import Array, ArrayLike, Arrays, KeyLike, Keys, KeyT


class KVStore(CaptureVerbs, UnevenVerbs, WaitVerbs, TableVerbs, CheckpointVerbs, LaterVerbs):
    """Values by key, the same on all ranks; made by `ncclkv.create`.

    All ranks make the same calls in the same order, except where a verb is marked local.  A store
    belongs to the thread that created it.
    """

    def push(self, key: KeyLike | Keys[KeyT], value: ArrayLike | Arrays, priority: int = 0) -> None:
        """Reduce values over all ranks and fold them into the store; collective.

        Parameters
        ----------
        key : int or str, or list of them
            A key repeated in a list is one group, as if its arrays had been given in one list.
        value : array, or list of arrays; for a list of keys a list of such
            Of the key's shape and dtype.  Several arrays of a key are combined here first, by its
            op, ``avg`` adding.  The caller may change them as soon as push returns.
        priority : int
            Among the buckets that one call or group launches, higher ones go first.

        Raises
        ------
        KeyNotInitialized, ShapeMismatch, DTypeMismatch, UsageError
            Before anything is copied or sent.

        Notes
        -----
        Without an updater the reduction replaces the value.  16-bit floats are combined in float32,
        and rounded once on a rank and once over ranks.

        Examples
        --------
        One array, several, and a list of keys:

        >>> import numpy as np, ncclkv
        >>> kv = ncclkv.create("local")
        >>> kv.init(3, np.zeros(2))
        >>> kv.push(3, np.full(2, 8.0))
        >>> kv.pull(3)
        array([8., 8.])
        >>> kv.push(3, [np.ones(2), np.ones(2), np.ones(2)])
        >>> kv.pull(3)
        array([3., 3.])
        >>> kv.init([5, 7], [np.zeros(1), np.zeros(1)])
        >>> kv.push([5, 7], [np.ones(1), [np.ones(1), np.ones(1)]])
        >>> kv.pull([5, 7])
        [array([1.]), array([2.])]
        >>> kv.close()
        """
        with self._pushing:
            if type(priority) is not int or priority:
                priority = whole_priority("push", priority)
            push, row = self._to_push("push", key, value)
            if self._group is not None:
                self._group.push(push, row, priority)
                return
            try:
                step = self._engine.ready(push)
            except BaseException as error:
                self._session.checks.failed(error)
                raise
            self._operations.push("push", push, None, priority)
            self._stage("push", key, push, row, priority, step)
        self._raise_late()

    @overload
    def pull(
        self,
        key: KeyLike,
        out: None = None,
        priority: int = 0,
        ignore_sparse: bool = True,
        *,
        local: bool = False,
    ) -> Array: ...

    @overload
    def pull(
        self,
        key: Keys[KeyT],
        out: None = None,
        priority: int = 0,
        ignore_sparse: bool = True,
        *,
        local: bool = False,
    ) -> list[Array]: ...

    @overload
    def pull(
        self,
        key: KeyLike | Keys[KeyT],
        out: ArrayLike | Arrays,
        priority: int = 0,
        ignore_sparse: bool = True,
        *,
        local: bool = False,
    ) -> None: ...

    def pull(
        self,
        key: KeyLike | Keys[Any],
        out: ArrayLike | Arrays | None = None,
        priority: int = 0,
        ignore_sparse: bool = True,
        *,
        local: bool = False,
    ) -> Array | list[Array] | None:
        """Copy values out of the store; collective, unless `local`.

        Parameters
        ----------
        key : int or str, or list of them
        out : array, or list of arrays; for a list of keys a list of such; optional
            Written in any layout, with a cast to its dtype.  The same array may stand for several
            keys: it ends with the value of the last, ints ascending, strings as initialised.
        priority : int
            MXNet's; what a pull must flush is launched in the order of its keys' initialisation.
        ignore_sparse : bool
            MXNet's; values are dense here, so it has no effect.
        local : bool
            Take the value as of the last flush, without a call of other ranks.  A flush that has
            begun is waited for; `wait` first, if other ranks may do something else meanwhile.

        Returns
        -------
        ndarray, or list of them, or None
            New arrays when `out` is not given.

        Raises
        ------
        KeyNotInitialized, ShapeMismatch, DTypeMismatch, UsageError
            Before anything is written: also when an `out` is read-only or overlaps another.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> with ncclkv.create("local") as kv:
        ...     kv.init("w", np.full((2, 2), 1.5))
        ...     whole = np.zeros((2, 2), np.int32)
        ...     kv.pull("w", out=whole)
        ...     print(whole)
        [[1 1]
         [1 1]]
        """
        with self._pulling:
            if type(priority) is not int or priority:
                whole_priority("pull", priority)
            local = local if type(local) is bool else flag("pull", "local", local)
            made = None
            if out is None:
                made = self._pull_new(key, local)
            else:
                pull, row = self._to_pull("pull", key, out, local=local)
                if local:
                    self._engine.read(pull, row)
                elif self._group is not None:
                    self._group.pull(pull, row)
                else:
                    self._operations.pull(pull)
                    self._pull(pull, row)
        self._raise_late()
        return made

    def pushpull(
        self,
        key: KeyLike | Keys[KeyT],
        value: ArrayLike | Arrays,
        out: ArrayLike | Arrays | None = None,
        priority: int = 0,
    ) -> None:
        """Push all keys, then pull all keys; collective.

        Parameters
        ----------
        key, value, priority
            As for `push`.
        out : optional
            As for `pull`; by default the results are written back into `value`.

        Notes
        -----
        What an updater raises leaves pushpull after the pull.
        """
        with self._session.verb("pushpull", allowed_inside=BLOCKS):
            priority = whole_priority("pushpull", priority)
            out = value if out is None else out
            # The push first, for it gives keys their places; it changes nothing yet.
            push = self._to_push("pushpull", key, value)
            pull, row = self._to_pull("pushpull", key, out)
            if self._group is not None:
                self._group.push(*push, priority)
                self._group.pull(pull, row)
                return
            try:
                step = self._engine.ready(push[0])
            except BaseException as error:
                self._session.checks.failed(error)
                raise
            self._operations.push("pushpull", push[0], pull, priority)
            self._stage("pushpull", key, *push, priority, step)
            self._pull(pull, row)
        self._raise_late()

    def broadcast(
        self,
        key: KeyLike | Keys[KeyT],
        value: ArrayLike | Arrays,
        out: ArrayLike | Arrays,
        priority: int = 0,
    ) -> None:
        """Give rank 0's value to all ranks: `init`, or `reset` of a known key, then pull.

        Parameters
        ----------
        key : int or str, or list of them
        value : array, or list of arrays
            As for `init`.
        out : array, or list of arrays; for a list of keys a list of such
            As for `pull`.
        priority : int
            As for `pull`.
        """
        with self._session.verb("broadcast"):
            whole_priority("broadcast", priority)
            reads: list[tuple[Key, Array]] = []

            def make() -> Assignment:
                made = self._any_keys("broadcast", key, value)
                trial = self._engine.layout.registry.with_keys(made.specs)
                reads.extend(self._outs("broadcast", key, out, trial))
                self._engine.layout.check_outs(reads, flushed=True)
                return made

            self._assign("broadcast", make)
            pull, row = self._engine.plan_pull(reads)
            pull.tensors = tensors(out)
            self._pull(pull, row)
        self._raise_late()

    @contextmanager
    def group(self) -> Iterator[None]:
        """Make one list of the pushes, and one of the pulls, inside a ``with`` block; collective.

        All pushes are flushed together at the end of the block, and pulls are written then.  Only
        push, pull with `out`, pushpull and local verbs may be called inside.  An optimizer works
        with its numbers as they are at the end.  An exception that leaves the block drops what was
        pushed inside; what an updater raises leaves it at its end, after the pulls.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> with ncclkv.create("local") as kv:
        ...     kv.init([1, 2], [np.zeros(2), np.zeros(2)])
        ...     weights = {1: np.zeros(2), 2: np.zeros(2)}
        ...     with kv.group():
        ...         for key in (1, 2):
        ...             kv.push(key, np.full(2, float(key)), priority=-key)
        ...             kv.pull(key, out=weights[key])
        ...     print(weights)
        {1: array([1., 1.]), 2: array([2., 2.])}
        """
        with self._session.verb("group", allowed_inside=(IN_CAPTURE, IN_UNEVEN)):
            self._operations.note("group")
            group = self._group = Group(self._engine)
            outer, self._session.inside = self._session.inside, IN_GROUP
        try:
            yield
        except BaseException:
            group.cancel()
            raise
        finally:
            self._group = None
            self._session.inside = outer
        with self._session.verb("group", allowed_inside=(IN_CAPTURE, IN_UNEVEN)):
            self._flush_group(group)
        self._raise_late()
