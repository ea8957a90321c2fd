"""KVStore: the verbs of a store; each verb delegates to one component."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload

from ncclkv.comm.base import Communicator
from ncclkv.engine.instrument import Instrument
from ncclkv.other_names import OF_STORES, missing
from ncclkv.store.capture import CapturedStep, Captures
from ncclkv.store.compression import Compression
from ncclkv.store.context import Context, open_context
from ncclkv.store.objects import Objects
from ncclkv.store.observing import Observing, Trace
from ncclkv.store.one_off import OneOff
from ncclkv.store.options import Options
from ncclkv.store.overlaps import Overlaps
from ncclkv.store.plan_text import plan_text
from ncclkv.store.plugin import KVStoreBase, is_capability
from ncclkv.store.registration import Registration
from ncclkv.store.transfers import Transfers
from ncclkv.store.updater_choice import UpdaterChoice
from ncclkv.store.waiting import Waiting
from ncclkv.table.registry import Key, KeySpec
from ncclkv.tracebacks import PublicBlock, public_methods, trim
from ncclkv.typing import (
    Array,
    ArrayLike,
    Arrays,
    KeyLike,
    Keys,
    KeyT,
    NumberT,
    Op,
    Updater,
    ValueLike,
    Values,
)

if TYPE_CHECKING:
    from ncclkv.optimizer.base import Optimizer
    from ncclkv.store.checkpoints import Checkpoints, Loaded

Self = TypeVar("Self", bound="KVStore")


# These have the except clause of a public method themselves: a call more would slow them down.
@public_methods("push", "pull", "pushpull", "wait", "value", "grad_view", "allreduce")
class KVStore(KVStoreBase):
    """Values by key, the same on all ranks; made by `ncclkv.create`.

    All ranks make the same calls in the same order, except of the verbs marked local.  A store
    belongs to the thread that created it.

    Examples
    --------
    >>> import numpy as np, ncclkv
    >>> kv = ncclkv.create("local")
    >>> kv.init("w", np.zeros(2))
    >>> kv.push("w", np.ones(2))
    >>> kv.pull("w")
    array([1., 1.])
    >>> kv.close()
    """

    def __init__(self, name: str, comm: Communicator, options: Options) -> None:
        context: Context = open_context(name, comm, options)
        self._name = name
        self._context = context
        self._registration = Registration(context)
        self._transfers = Transfers(context, self._registration)
        self._overlaps = Overlaps(context, self._transfers)
        self._one_off = OneOff(context)
        self._objects = Objects(context)
        self._observing = Observing(context, name)
        self._waiting = Waiting(context, self._observing.tracing.compare_clocks_at_end)
        self._updaters = UpdaterChoice(context)
        self._compression = Compression(context)
        self._captures = Captures(context)

    # Keys

    def init(self, key: KeyLike | Keys[KeyT], value: ValueLike | Values, *, op: Op = "sum") -> None:
        """Give keys their first value, which is rank 0's on every rank; collective.

        Parameters
        ----------
        key : int or str, or list of them
            All keys of a store are ints, or all are strs.
        value : array, or list of arrays
            One array for each key: any shape; a boolean, integer, floating or complex dtype.  The
            store copies rank 0's array; other ranks give arrays of the same shape and dtype.  A
            Python scalar makes a key of shape (): bool, int64, float64 or complex128.
        op : {"sum", "avg", "max", "min", "prod"}
            The reduction of pushes over ranks.  A sum of bool is a logical or, a product a logical
            and; ``avg`` divides the sum over ranks by their count, integers toward zero.  The sum
            of integers wraps around; that of an average is made in 64 bits.
            Complex numbers have ``sum`` and ``avg`` only.

        Raises
        ------
        KeyAlreadyInitialized
            When a key already has a value; `reset` replaces a value.
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
        self._registration.initialize(key, value, op)

    def reset(
        self, key: KeyLike | Keys[KeyT], value: ValueLike | Values, *, reset_states: bool = True
    ) -> None:
        """Replace values by rank 0's, and clear an optimizer's state of them; collective.

        Parameters
        ----------
        key : int or str, or list of them
        value : array, or list of arrays
            One array for each key, of the key's shape and dtype; or a scalar, as for `push`.
        reset_states : bool
            Whether the optimizer's states and counts of the keys begin anew.  If not, only the
            master copies of 16-bit weights take the new values.

        Raises
        ------
        KeyNotInitialized, ShapeMismatch, DTypeMismatch
            Before anything changes.
        """
        self._registration.replace_values(key, value, reset_states=reset_states)

    def broadcast(
        self,
        key: KeyLike | Keys[KeyT],
        value: ValueLike | Values,
        out: ArrayLike | Arrays,
        priority: int = 0,
    ) -> None:
        """Give all ranks rank 0's value: `init` or `reset`, then `pull`; collective.

        A new key is initialised, and an existing key is reset.

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
        self._transfers.assign_and_pull(key, value, out, priority)

    def value(self, key: KeyLike) -> Array:
        """Return a view of a key's value as of its bucket's last flush; local, but may wait for it.

        Parameters
        ----------
        key : int or str

        Returns
        -------
        ndarray
            Read-only, of the key's shape; valid until this rank's next push into the same bucket.
            From a store on a GPU it is CuPy's, which has no read-only arrays: writing to it changes
            the value on this rank alone.

        Notes
        -----
        value waits for a flush that has begun.  With ``update_on="root"`` or ``"sharded"`` a rank
        sees what other ranks have updated as of its last pull, wait or barrier.
        """
        try:
            return self._registration.view_value(key)
        except Exception as error:
            trim(error)
            raise

    def grad_view(self, key: KeyLike) -> Array:
        """Return a key's gradient, from which a push copies nothing; local, but waits for a flush.

        Parameters
        ----------
        key : int or str

        Returns
        -------
        ndarray
            Writable, of the key's shape.  From a push of the key until its next pull, wait or flush
            the array belongs to the store.  At other times its content stays until the key is
            pushed, also while other ranks push the key without this rank.  The end of an overlap
            block with ``missing="zeros"`` pushes zeros there.

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
        try:
            return self._transfers.lend_gradient(key)
        except Exception as error:
            trim(error)
            raise

    def keys(self) -> list[Key]:
        """Return all keys, in the order of their initialisation; local."""
        return self._registration.all_keys()

    def __contains__(self, key: object) -> bool:
        return self._registration.has_key(key)

    def spec(self, key: KeyLike) -> KeySpec:
        """Return a key's shape, dtype, op and index, the same on all ranks; local.

        Raises
        ------
        KeyNotInitialized
            When there is no such key.
        """
        return self._registration.spec_of(key)

    def explain_plan(self) -> str:
        """Return the buckets as a table, in the order of launching unless priorities change it.

        Local: each rank shows its own times, and the bytes of its optimizer's states.

        The columns are dtype, op, bytes (padding included), keys, the ranks that update them, two
        times of the bucket's reduction in milliseconds, and the first and last key.

        ``predicted`` is the time by the model of latency and bandwidth that
        ``bucket_bytes="auto"`` has measured; the last lines show the model.  An optimizer's update
        is not in it.

        ``measured`` is the median of the last nine reductions of the whole bucket, from launch to
        the wait that found it done.  On hosts a collective progresses during calls of the store, so
        this time includes the rank's work between these calls, and the optimizer's update.

        ``-`` stands for an unknown time: no prediction without ``"auto"`` or with one rank; no
        measurement before the first reduction, without a collective, and on a GPU, because the host
        does not wait for it.

        In host memory a line names the keys that run without the kernels in C, for each reason.  A
        store that would use GPUs also has a line with the reason that it does not.

        The last lines count calls.  A call *found prepared* repeats an earlier call of its keys,
        with the same arrays or with new NumPy arrays of the same dtypes, shapes and flags.  A call
        *checked anew* takes many times longer.  The line names the keys of the last such call, and
        the reason.  ``pushpull`` counts as a push and a pull.
        """
        return plan_text(self._context, self._transfers.counts)

    # Transfers

    def push(self, key: KeyLike | Keys[KeyT], value: ValueLike | Values, priority: int = 0) -> None:
        """Reduce values over all ranks and fold them into the store; collective.

        Parameters
        ----------
        key : int or str, or list of them
            The arrays of a key that is repeated in the list form one list.
        value : array, or list of arrays; for a list of keys a list of such
            Arrays of the key's shape and dtype.  Several arrays of a key are first combined on this
            rank by the key's op; ``avg`` adds them.  The caller may change them once push returns.
            For a key of shape () a Python scalar stands for an array.  The scalar is rounded to the
            key's dtype; `DTypeMismatch` if the dtype has no such values.
        priority : int
            Buckets of higher priority are launched first, within one call or group.

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

        A key without dimensions:

        >>> kv.init(9, 0.0)
        >>> kv.push(9, 2.5)
        >>> float(kv.pull(9))
        2.5
        >>> kv.close()
        """
        try:
            self._transfers.push_arrays(key, value, priority)
        except Exception as error:
            trim(error)
            raise

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
            keys: it gets the value of the last key, by index or in the order of initialisation.
        priority : int
            Accepted for compatibility with MXNet, without effect.  A pull launches the buckets that
            it must flush in the order of its keys' initialisation.
        ignore_sparse : bool
            Accepted for compatibility with MXNet, without effect: values are dense.
        local : bool
            Copy the value as of the last flush, without a call of other ranks.  pull waits for a
            flush that has begun; call `wait` first if other ranks may make other calls before.

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
        try:
            return self._transfers.pull_arrays(key, out, priority, local=local)
        except Exception as error:
            trim(error)
            raise

    def pushpull(
        self,
        key: KeyLike | Keys[KeyT],
        value: ValueLike | Values,
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
        pushpull raises an updater's exception after the pull.
        """
        try:
            self._transfers.push_and_pull(key, value, out, priority)
        except Exception as error:
            trim(error)
            raise

    def group(self) -> AbstractContextManager[None]:
        """Combine the pushes of a ``with`` block into one push, and its pulls into one; collective.

        All pushes are flushed together at the end of the block, and pulls are written then.  Only
        push, pull with `out`, pushpull and local verbs may be called inside.  An optimizer uses its
        hyperparameters as they are at the end.

        An exception that leaves the block drops the pushes of the block.  The end of the block
        raises an updater's exception, after the pulls.

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
        return PublicBlock(self._transfers.group_calls())

    def overlap(
        self,
        keys: Keys[KeyT] | None = None,
        *,
        missing: Literal["error", "zeros"] = "error",
    ) -> AbstractContextManager[None]:
        """Take pushes from any thread in a ``with`` block, each key once, in any order; collective.

        A bucket is reduced when its keys are pushed and the buckets before it are launched.  So
        reductions overlap with the code of the block, such as a backward pass, and ranks may push
        in different orders.  On hosts a reduction progresses during pushes, and after the block.

        Only push and grad_view may be called inside.  Both are local there: the whole block is one
        collective call, of the keys given.  One thread pushes at a time; the others wait.  The
        store's own thread opens and ends the block, after the last push of other threads.

        Parameters
        ----------
        keys : list of int or str, optional
            The keys that the block pushes, equal on all ranks; by default all keys of the store.
        missing : {"error", "zeros"}
            What a key counts as that this rank has not pushed at the end of the block.  ``"zeros"``
            writes zeros to its gradient; for max, min and prod the value that changes nothing.

        Raises
        ------
        UsageError
            On a push of a key that was pushed in the block, or is not in `keys`; at the end, when a
            key was not pushed; on a push of another thread outside of the block.
        OrderMismatch
            On every rank, when ranks give different keys, or leave the block in different states.

        Notes
        -----
        Pushes that wait are flushed first.  An optimizer uses its hyperparameters as they are at
        the begin of the block.  A function as updater is called at the end, in MXNet's order.
        Priorities have no effect: buckets are launched in the order of `explain_plan`.

        A new thread of CUDA has GPU 0 current.  Its first push or grad_view makes the store's GPU
        current there; a thread that has used another GPU keeps that GPU.  To write to a view of
        `grad_view`, make the store's GPU current.

        In an uneven block, or with ``missing="zeros"`` in `create`, nothing is reduced during the
        block.  Its pushes wait for the next pull or wait, which uses the hyperparameters of that
        moment, and calls a function as updater.  With that option ranks may give different keys.

        An exception that leaves the block drops the keys whose bucket is not launched.  A note of
        the exception tells how many keys were reduced.  If an optimizer has updated them, the store
        breaks, since another push would update them twice.

        Examples
        --------
        >>> import threading, numpy as np, ncclkv
        >>> with ncclkv.create("local") as kv:
        ...     kv.init(["w", "b"], [np.zeros(2), np.zeros(1)])
        ...     with kv.overlap():
        ...         thread = threading.Thread(target=kv.push, args=("b", np.ones(1)))
        ...         thread.start()
        ...         kv.push("w", np.full(2, 3.0))
        ...         thread.join()
        ...     kv.pull(["w", "b"])
        [array([3., 3.]), array([1.])]
        """
        return PublicBlock(self._overlaps.overlap_block(keys, missing))

    # Arrays without keys

    @overload
    def allreduce(self, x: ArrayLike, op: Op = "sum", *, out: None = None) -> Array: ...

    @overload
    def allreduce(self, x: float, op: Literal["avg"], *, out: None = None) -> float: ...

    @overload
    def allreduce(self, x: complex, op: Literal["avg"], *, out: None = None) -> complex: ...

    @overload
    def allreduce(
        self, x: NumberT, op: Literal["sum", "max", "min", "prod"] = "sum", *, out: None = None
    ) -> NumberT: ...

    @overload
    def allreduce(
        self, x: Sequence[ValueLike], op: Op = "sum", *, out: None = None
    ) -> list[Any]: ...

    @overload
    def allreduce(
        self,
        x: ValueLike | Sequence[ValueLike],
        op: Op = "sum",
        *,
        out: ArrayLike | Sequence[ArrayLike],
    ) -> None: ...

    def allreduce(self, x: Any, op: Op = "sum", *, out: Any = None) -> Any:
        """Reduce arrays without keys over all ranks; collective.

        Parameters
        ----------
        x : array or scalar, or list of them
            Any shape and dtype that `init` takes, equal on all ranks.
        op : {"sum", "avg", "max", "min", "prod"}
            As for `init`: the average of an array of integers, also of shape (), is an integer.
        out : array, or list of them, optional
            Written in any layout, with a cast to its dtype; may be `x`.

        Returns
        -------
        ndarray or scalar, or list of them, or None
            New arrays when `out` is not given: NumPy's, or CuPy's from a store on a GPU.  The
            result for a scalar of Python or NumPy is such a scalar, for which the host waits.  The
            average of Python ints is a float.

        Raises
        ------
        OrderMismatch
            When ranks give other shapes, dtypes or ops; the error has both calls.
        ShapeMismatch, DTypeMismatch, NotSupported, UsageError
            Before anything is sent.

        Notes
        -----
        A sum of bools is their logical or, as NumPy's: pass ``int(x)`` to count.  Integers wrap
        around as those of NumPy, also Python's, which are summed in int64.  The sum of an average
        is made in 64 bits.

        allreduce neither flushes pushes nor changes values.  The call is refused in blocks of
        `group`, `uneven` and `capture`, and in an updater.  The arrays of a list share a collective
        for each dtype.  A repeated call is faster if its shapes and dtypes are those of a recent
        call.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> def work():
        ...     with ncclkv.create("threads") as kv:
        ...         worst = kv.allreduce(0.5 + kv.rank, "max")
        ...         total = kv.allreduce(np.full(2, kv.rank + 1))
        ...     return worst, total
        >>> ncclkv.testing.run_ranks(2, work)
        [(1.5, array([3, 3])), (1.5, array([3, 3]))]
        """
        try:
            return self._one_off.reduce_over_ranks(x, op, out)
        except Exception as error:
            trim(error)
            raise

    @overload
    def allgather(self, x: ValueLike, *, out: None = None) -> Array: ...

    @overload
    def allgather(self, x: Sequence[ValueLike], *, out: None = None) -> list[Array]: ...

    @overload
    def allgather(
        self, x: ValueLike | Sequence[ValueLike], *, out: ArrayLike | Sequence[ArrayLike]
    ) -> None: ...

    def allgather(self, x: Any, *, out: Any = None) -> Any:
        """Stack all ranks' arrays along a new first axis, in rank order; collective.

        Parameters
        ----------
        x : array or scalar, or list of them
            As for `allreduce`: of the same shapes on all ranks.
        out : array, or list of them, optional
            As for `allreduce`, of shape ``(num_workers, *x.shape)``.

        Returns
        -------
        ndarray, or list of them, or None
            New arrays when `out` is not given, of shape ``(num_workers, *x.shape)``.

        Raises
        ------
        OrderMismatch, ShapeMismatch, DTypeMismatch, NotSupported, UsageError
            As for `allreduce`.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> def work():
        ...     with ncclkv.create("threads") as kv:
        ...         return kv.allgather(10 * kv.rank)
        >>> ncclkv.testing.run_ranks(2, work)
        [array([ 0, 10]), array([ 0, 10])]
        """
        return self._one_off.gather_from_ranks(x, out)

    # Objects

    def broadcast_object(self, obj: Any, root: int = 0) -> Any:
        """Return one rank's Python object on every rank; collective.

        Parameters
        ----------
        obj : object
            Of the root; the objects of other ranks are ignored, and may be None.
        root : int
            The rank whose object all ranks get, the same on all ranks.

        Returns
        -------
        object
            A copy, also on the root and in a store of one rank.

        Raises
        ------
        UsageError
            On every rank, when the object cannot be pickled, or has more than 16 MiB then.  On a
            rank alone, when the object cannot be unpickled there.
        OrderMismatch
            On every rank, when ranks give other roots or make other calls.

        Notes
        -----
        The object is pickled, sent to all ranks through the memory of the hosts, and unpickled.
        Unpickling runs code, which is safe between ranks of a job, as these run the same program.
        No store ever unpickles a file.

        The call neither flushes pushes nor changes values.  The call is refused in blocks of
        `group`, `overlap`, `uneven` and `capture`, and in an updater.

        Examples
        --------
        >>> import ncclkv
        >>> def work():
        ...     with ncclkv.create("threads") as kv:
        ...         options = {"lr": 0.1, "seed": 7} if kv.rank == 0 else None
        ...         return kv.broadcast_object(options)
        >>> ncclkv.testing.run_ranks(2, work)
        [{'lr': 0.1, 'seed': 7}, {'lr': 0.1, 'seed': 7}]
        """
        return self._objects.send_from_root(obj, root)

    def allgather_object(self, obj: Any) -> list[Any]:
        """Return the Python objects of all ranks, in rank order; collective.

        Parameters
        ----------
        obj : object
            Of any kind and size up to 16 MiB on each rank.

        Returns
        -------
        list of object
            Copies, also of this rank's own object.

        Raises
        ------
        UsageError, OrderMismatch
            As for `broadcast_object`.  The error of the lowest rank is raised.

        Notes
        -----
        As for `broadcast_object`.  `allgather` is faster for arrays and scalars.

        Examples
        --------
        >>> import ncclkv
        >>> def work():
        ...     with ncclkv.create("threads") as kv:
        ...         return kv.allgather_object("abc"[: kv.rank + 1])
        >>> ncclkv.testing.run_ranks(2, work)
        [['a', 'ab'], ['a', 'ab']]
        """
        return self._objects.gather_from_ranks(obj)

    # Waiting

    def wait(self, key: KeyLike | Keys[KeyT] | None = None) -> None:
        """Flush pushes of the given keys or of all keys, and wait for their end; collective.

        Parameters
        ----------
        key : int or str, or list of them, optional
        """
        try:
            self._waiting.wait_for(key)
        except Exception as error:
            trim(error)
            raise

    def barrier(self) -> None:
        """Flush all pushes, and wait until every rank has arrived; collective."""
        self._waiting.wait_for_ranks()

    _barrier = barrier

    def uneven(self) -> AbstractContextManager[None]:
        """Let ranks leave a ``with`` block at different times; collective.

        A rank at the end of the block takes part in the other ranks' flushes without a
        contribution, until all ranks have arrived at the end.  Averages are then over the ranks
        that still push.  The rank at the end adopts the hyperparameters of their optimizer.  All
        ranks leave with the same values.

        Only push, pull, pushpull, wait, group and local verbs may be called inside.  The ranks that
        are still in the block must make the same calls.  A push is flushed by the next pull, wait
        or end of a group, or by another push of the key, after an exchange between the hosts.
        Pushes that a rank has not flushed when it arrives at the end count in the other ranks'
        next flush, whatever these ranks have pushed since.

        An exception that leaves the block on one rank breaks the store.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> def work():
        ...     with ncclkv.create("threads") as kv:
        ...         kv.init("mean", np.zeros(2), op="avg")
        ...         with kv.uneven():
        ...             for batch in range(2 + kv.rank):
        ...                 kv.push("mean", np.full(2, 1.0 + batch + kv.rank))
        ...                 kv.wait()
        ...         return kv.pull("mean")
        >>> ncclkv.testing.run_ranks(2, work)
        [array([4., 4.]), array([4., 4.])]
        """
        return PublicBlock(self._waiting.uneven_block())

    def capture(self) -> AbstractContextManager[CapturedStep]:
        """Capture the pushes and pulls of a ``with`` block as a CUDA graph; collective.

        The block executes nothing.  `CapturedStep.replay` executes all its calls on the arrays'
        content of that moment, for the host's time of one call.  The same step must have been made
        once before.  Inside the block, CuPy's current stream is a stream of the capture.

        Only push, pull with `out`, pushpull, group and local verbs may be called inside, with
        CuPy's arrays on the store's GPU.  Kernels that the program launches on CuPy's current
        stream inside the block are captured too.  They must have been launched before, may allocate
        no memory, and may use only memory that lives as long as the step.

        A replay uses the optimizer's hyperparameters of that moment.  An optimizer that counts its
        updates may update a key once in a step.

        Yields
        ------
        CapturedStep
            The step, for replays after the block.

        Raises
        ------
        NotSupported
            When the store is in host memory, ``NCCL_COMM_BLOCKING=0`` is set, or a key is
            compressed by powersgd.
        UsageError
            When the updater is a function, keys have no slot yet, or the step has not been made
            before; for NumPy arrays and other arrays that a graph cannot hold; for all other verbs.
            The error leaves the block, and the store is unchanged.
        SpecMismatch
            On every rank, when ranks captured different steps, or a capture failed on a rank.

        Examples
        --------
        Of a store on a GPU::

            kv.pushpull(keys, gradients, weights)          # once before the capture
            with kv.capture() as step:
                kv.pushpull(keys, gradients, weights)
            for batch in data:
                compute(batch, weights, gradients)         # on CuPy's current stream
                step.replay()
        """
        return PublicBlock(self._captures.capture_block())

    # Updates

    def set_updater(self, updater: Updater) -> None:
        """Fold sums into values by a function of the program; collective.

        Parameters
        ----------
        updater : callable, or object with ``update`` and perhaps ``dispose``
            ``updater(key, input, stored)`` changes `stored` in place, as by ``stored[...] =``, and
            returns None; another result is ignored, with a warning.

        Raises
        ------
        UsageError
            When `updater` is neither a function nor such an object.

        Notes
        -----
        `key` is as the user gave it; `input` is the sum over all ranks.  Both arrays have the key's
        shape and belong to the store: copy them to keep them.  They are NumPy's, or CuPy's in a
        store on a GPU.

        With ``update_on="sharded"`` each key has one rank that calls the updater for it.  The
        updater is called before ``push`` returns, once for each key pushed: ints ascending,
        strings in the order of their initialisation.  ``push`` raises the updater's exception; with
        ``update_on="root"`` or ``"sharded"`` other ranks raise `UpdaterError` at their next pull or
        wait.

        ``dispose()`` is called when the updater is replaced or the store closed.

        The updater calls no verb of its own store.  The updater may call other stores if all ranks
        make the same calls, as with ``update_on="every_rank"``.  ``state_dict`` and the methods
        that load a state call no store.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> def update(key, input, stored):
        ...     stored += 2 * input
        >>> with ncclkv.create("local") as kv:
        ...     kv.init(3, np.zeros(2))
        ...     kv.set_updater(update)
        ...     kv.push(3, np.ones(2))
        ...     kv.pull(3)
        array([2., 2.])
        """
        self._updaters.use_function(updater)

    _set_updater = set_updater

    def set_optimizer(self, optimizer: Optimizer, *, reset_states: bool = False) -> None:
        """Run an optimizer at each push of gradients; a pull returns weights; collective.

        Parameters
        ----------
        optimizer : Optimizer
            Such as ``ncclkv.optimizer.SGD(learning_rate=0.1, momentum=0.9)``, equal on all ranks.
            Changes of its learning rate and other attributes take effect at the next push.
        reset_states : bool
            Whether states and counts of updates start anew.  Otherwise they are kept if the store
            has an optimizer of the same class and with the same states, as momenta.

        Raises
        ------
        UsageError
            When `optimizer` is not an `Optimizer`, or `reset_states` not a bool.
        SpecMismatch
            On every rank, when ranks set different optimizers.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> with ncclkv.create("local") as kv:
        ...     kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=0.5))
        ...     kv.init("w", np.ones(2))
        ...     kv.push("w", np.ones(2))
        ...     kv.pull("w")
        array([0.5, 0.5])
        """
        self._updaters.use_optimizer(optimizer, reset_states=reset_states)

    # Compression

    def set_gradient_compression(
        self,
        compression_params: Mapping[str, Any] | None,
        *,
        keys: KeyLike | Sequence[KeyLike] | None = None,
    ) -> None:
        """Send later gradients in fewer bits; collective.

        What a push does not send stays in a residual of the rank, and is added to its next
        gradients of the key.  First values, pulls, and arrays without keys are never compressed.

        Parameters
        ----------
        compression_params : dict or None
            ``{"type": "2bit", "threshold": 0.5}``: each element sends `threshold`, its negative or
            0, at most one a push.  ``{"type": "1bit", "threshold": 0.5}``: it sends 1 if it is
            above `threshold`, else -1.  ``{"type": "fp16", "error_feedback": False}``, or
            ``bf16``: it sends itself, rounded to 16 bits.  ``{"type": "topk", "ratio": 0.01}``:
            this share of a key's elements is sent, the largest.  ``{"type": "powersgd", "rank":
            1}``: a matrix is sent as the product of two matrices of `rank` columns, once 10 sums
            of the key were sent whole.  None: gradients are sent whole, and residuals are
            dropped.  Residuals stay if the type and the scope stay.

            ``"scope": "node"``: the ranks of a node add their gradients in float32, and their sum
            is compressed; on one node nothing is.  By default each rank compresses its own.
        keys : int or str, or list of them, optional
            Keys, also future ones; a str may be a pattern, as ``"layer*"``.  By default all keys.
            The last call that matches a key counts.  Keys whose dtype or op the type does not
            compress are sent whole: fp16 and bf16 take float32 and float64, and all ops but
            ``prod``; other types take float32, and ``sum`` and ``avg``.

        Raises
        ------
        UsageError, UnknownArgument
            When a parameter is unknown or out of range; before anything is sent.
        DTypeMismatch, NotSupported
            When `keys` names a key that the type does not compress; when there are more senders
            than the type can sum.
        SpecMismatch
            On every rank, when ranks give different parameters or keys.
        OutOfMemory
            On every rank, when a rank has no memory for what the type keeps.

        Notes
        -----
        Sums of 1bit and 2bit are those of MXNet's arithmetic.  They are made of integers, so every
        rank gets the same bits on any machines.  Sums of powersgd are those of Vogels et al.,
        "PowerSGD", 2019; its other parameters are those of torch's ``PowerSGDState``.  A store of
        one process compresses each array of a key by itself.

        A threshold that is small beside the gradients makes residuals grow without end: rank 0
        then logs a warning, with a threshold that would serve.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> with ncclkv.create("device") as kv:
        ...     kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        ...     kv.init("w", np.zeros(3, np.float32))
        ...     kv.push("w", np.array([0.6, -0.3, 2.0], np.float32))
        ...     first = kv.pull("w")
        ...     kv.push("w", np.array([0.0, -0.3, 0.0], np.float32))
        ...     print(first, kv.pull("w"))
        [0.5 0.  0.5] [ 0.  -0.5  0.5]
        """
        self._compression.set_codec(compression_params, keys)

    def gradient_compression(self, key: KeyLike) -> dict[str, Any] | None:
        """Return the parameters that compress a key; local.

        Returns
        -------
        dict or None
            All parameters, with their defaults; None if the gradients of the key are sent whole.
            ``"saturated"`` is the share of this rank's residuals that were too large for the type
            at the last launch: above `threshold` (2bit), or above 4 (1bit).  A GPU may not have
            counted it yet; then the share is that of an earlier launch.
        """
        return self._compression.parameters_of(key)

    # Checkpoints

    @cached_property
    def _checkpoints(self) -> Checkpoints:
        """The component of saves and loads, imported at the first of them."""
        from ncclkv.store.checkpoints import Checkpoints

        return Checkpoints(self._context)

    def save(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        step: int = 0,
        extra: Any = None,
        keep: int = 2,
    ) -> str:
        """Write all values and the optimizer's state to a new checkpoint; collective.

        One rank writes: rank 0, or the root with ``update_on="root"``.  With
        ``update_on="sharded"`` every rank writes the part that it updates, to files of its own, if
        all ranks have the directory of rank 0.  The checkpoint is complete on its disk before it
        gets its name in the directory.  So a process that is killed at any moment leaves the
        earlier checkpoints, with or without the new one.

        If gradients are compressed, every rank writes its residuals in the same way.

        Parameters
        ----------
        directory : path, optional
            Path on the machine of rank 0, or of the root, for this job's checkpoints alone; made if
            it is not there.  By default the environment's ``NCCLKV_CHECKPOINT``.
        step : int
            Count of steps done, 0 or more; `load` returns it.
        extra : Any
            A value that JSON can hold, such as the state of a random generator or of a schedule.
            The value of the writing rank is saved.
        keep : int
            Count of checkpoints that stay in the directory, the new one included; older ones are
            removed.

        Returns
        -------
        str
            The new checkpoint's path on the writing rank's machine.

        Raises
        ------
        CheckpointError
            On every rank, when a rank cannot write, with the rank, its host, the path and the
            system's reason.  The store and the older checkpoints are unchanged.
        NotSupported
            When the package safetensors is not installed there.

        Warns
        -----
        In the log, when an older checkpoint cannot be removed, and when the newest checkpoint in
        the directory is another job's that this store has not loaded.

        Notes
        -----
        If an updater object has ``state_dict()``, save also writes the dict that it returns.  The
        dict holds arrays, in host memory or a GPU's, and JSON values.  A function has no state.

        With ``update_on="sharded"`` the updater of each rank has the state of the keys that this
        rank updates, and save writes the dicts of all ranks.

        Examples
        --------
        >>> import tempfile, numpy as np, ncclkv
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     with ncclkv.create("local") as kv:
        ...         kv.init("w", np.full(2, 1.5))
        ...         path = kv.save(directory, step=120, extra={"epoch": 3})
        ...     with ncclkv.create("local") as kv:
        ...         loaded = kv.load(directory)
        ...         print(loaded.step, loaded.extra, kv.pull("w"))
        120 {'epoch': 3} [1.5 1.5]
        """
        return self._checkpoints.save_store(directory, step=step, extra=extra, keep=keep)

    def load(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        required: bool = True,
        fallback: bool = False,
    ) -> Loaded | None:
        """Take all values and the optimizer's state from a checkpoint; collective.

        The rank that writes checkpoints reads the files, checks them, and sends their content to
        the other ranks.  Nothing is changed before all checks have passed.  The count of ranks,
        ``update_on``, ``bucket_bytes`` and the kind of memory may differ from the save's.

        Parameters
        ----------
        directory : path, optional
            The directory given to `save`, for its newest checkpoint; or one checkpoint in it.  By
            default the environment's ``NCCLKV_CHECKPOINT``.
        required : bool
            Whether a missing checkpoint is an error.
        fallback : bool
            Whether the newest intact checkpoint is loaded when newer ones are damaged, with a
            warning in the log of what is wrong with the newest.

        Returns
        -------
        Loaded or None
            Step, extra and path; None when there is no checkpoint and none is required.

        Raises
        ------
        CheckpointError
            On every rank, with the store as it was.  Either there is no checkpoint; or it is
            damaged or not ncclkv's, and the message names an older intact one; or its keys or its
            updater are not the store's.  Files with residuals are read twice: if the second read
            fails, the store has the values of the checkpoint, and its residuals are zero.
        NotSupported
            When the package safetensors is not installed on the reading rank.

        Notes
        -----
        A store without keys gets the checkpoint's; a store with keys must have the same, in any
        order.  A store without an updater gets the checkpoint's optimizer; a store with an
        optimizer of that class gets its hyperparameters, such as the learning rate.

        Set an updater object before the load.  Its ``load_state_dict`` is called on the ranks where
        it runs, with arrays in the store's memory: CuPy's on a GPU.

        After a save with ``update_on="sharded"`` on several ranks, each rank's updater gets the
        state of the same rank, if each key is updated on the same rank as before: with the same
        count of ranks, ``update_on``, ``bucket_bytes`` and order of keys.  Otherwise load
        calls ``merge_state_dicts(states)`` of the updater with the list of all ranks' states, and
        gives every rank the dict that the method returns.  Without this method it raises
        `CheckpointError`.

        Call `set_gradient_compression` before the load.  Residuals go to the keys that have a codec
        of the saved type; the others are dropped, with a line in the log.  The residual of rank r
        goes to rank r % n of n ranks, which adds its residuals in rank order.
        """
        return self._checkpoints.load_store(directory, required=required, fallback=fallback)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's state, without the values; collective.

        Parameters
        ----------
        fname : path
            A directory; checkpoints of `save` in it stay.
        dump_optimizer : bool
            Whether the optimizer's hyperparameters are to be loaded too.

        Raises
        ------
        CheckpointError
            As for `save`.
        UsageError
            When no optimizer is set.
        """
        self._checkpoints.save_states(fname, dump_optimizer)

    def load_optimizer_states(self, fname: str) -> None:
        """Take the optimizer's state from a checkpoint, and no values; collective.

        Parameters
        ----------
        fname : path
            The directory given to `save_optimizer_states` or to `save`.

        Raises
        ------
        CheckpointError
            As for `load`.
        UsageError
            When no optimizer is set.
        """
        self._checkpoints.load_states(fname)

    # A verb of MXNet's that this version does not have

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        """Raise `NotSupported`."""
        self._context.session.refuse("row_sparse_pull", "values are dense; pull the whole key")

    # Identity

    @property
    def type(self) -> str:
        """The name the store was created by, in lower case."""
        return self._name

    @property
    def rank(self) -> int:
        """The index of this rank, from 0."""
        return self._context.comm.rank

    @property
    def num_workers(self) -> int:
        """The count of ranks of the store."""
        return self._context.comm.size

    @property
    def local_rank(self) -> int:
        """The index of this rank among those of its node, from 0."""
        return self._context.comm.local_rank

    @property
    def update_on(self) -> str:
        """The ranks that run updaters: ``"every rank"``, or one, such as ``"rank 0"``."""
        return self._context.engine.placement.owner

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer that `set_optimizer` or `load` has set, or None."""
        return self._updaters.optimizer

    @property
    def repaired(self) -> int:
        """The count of values that ``repair=True`` has replaced so far; equal on all ranks."""
        return self._context.repaired

    @property
    def skipped(self) -> int:
        """The count of flushes skipped because of NaN or infinity; equal on all ranks."""
        return self._context.engine.skipped

    is_capable = staticmethod(is_capability)

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name):
            raise missing(f"{type(self).__name__!r} object", name, OF_STORES, self)

    def __repr__(self) -> str:
        return f"<ncclkv store {self._name!r}: {self._context.describe()}>"

    # Observing

    def add_instrument(self, instrument: Instrument) -> None:
        """Call the methods of an instrument at the store's later events; local.

        Parameters
        ----------
        instrument : Instrument
            An instrument that was added before is not called twice.

        Raises
        ------
        UsageError
            When `instrument` is of another class.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> class Verbs(ncclkv.Instrument):
        ...     def verb(self, name, seconds):
        ...         print(name)
        >>> with ncclkv.create("local") as kv:
        ...     kv.init("w", np.zeros(2))
        ...     kv.add_instrument(Verbs())
        ...     kv.push("w", np.ones(2))
        push
        close
        """
        self._observing.instruments.add(instrument)

    def remove_instrument(self, instrument: Instrument) -> None:
        """Stop the calls of an instrument; local.  Nothing happens if it was not added."""
        self._observing.instruments.remove(instrument)

    def trace(self, directory: str | os.PathLike[str]) -> Trace:
        """Write the store's events to a new file in a directory; local.

        The trace begins at once.  A trace ends at the end of a ``with`` block around the call, by
        its method ``stop``, by `stop_traces`, and with the store.  The command ``ncclkv trace
        DIRECTORY`` merges the files of all ranks for Perfetto or Chrome.

        Parameters
        ----------
        directory : path
            Made if it is not there; each rank and each trace has a file of its own.

        Returns
        -------
        Trace
            A ``with`` block with the method ``stop``, and the attribute ``path``.

        Raises
        ------
        UsageError
            When no file can be made there.

        Examples
        --------
        >>> import tempfile, numpy as np, ncclkv
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     with ncclkv.create("local") as kv:
        ...         kv.init("w", np.zeros(2))
        ...         with kv.trace(directory) as trace:
        ...             kv.push("w", np.ones(2))
        ...     with open(trace.path) as file:
        ...         len(file.readlines()) > 2
        True
        """
        return self._observing.tracing.start(directory)

    def stop_traces(self) -> None:
        """End all traces of this store, also that of ``NCCLKV_TRACE``; local."""
        self._observing.tracing.stop()

    def metrics(self) -> dict[str, Any]:
        """Return this rank's counts since the first call, as values that JSON can hold; local.

        The first call begins to count, so a store whose metrics nobody reads pays nothing.
        ``NCCLKV_METRICS=FILE`` counts from the creation on.

        Returns
        -------
        dict
            ``rank``, ``ranks``, ``seconds``
                This rank, the count of ranks, and the time of counting.
            ``verbs``
                ``calls`` and ``seconds`` of each verb.
            ``pushed_bytes``, ``pulled_bytes``, ``update_seconds``
                Bytes copied from and to the program's arrays, and the time of updates.
            ``waited_seconds``
                Seconds in which this rank waited for others.
            ``buckets``
                For each bucket, by its index as a text, and for ``"one-off"`` arrays: ``launches``
                and ``completed`` collectives; their ``nbytes``, ``wire_bytes`` that this rank
                sends, ``seconds`` from launch to completion, ``waited_seconds`` of the host,
                ``median_seconds``; ``median_skew_seconds`` between the entries of the last two
                ranks; and ``busbw_bytes_per_second``, as NCCL's tests compute it.  The time
                includes that for late ranks.
            ``last``
                Count of ``sums`` whose arrivals are known, and for each of the ``ranks`` that was
                last: ``count``, ``seconds``, ``median_seconds`` and ``most_seconds`` after the
                rank before.  Only ranks of this node that share memory are compared.
            ``awaited``
                The same values for the waits of this rank, by the rank awaited last.  Waits
                between nodes count, too.
            ``summary``
                Sentences about the ranks that were last.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> with ncclkv.create("local") as kv:
        ...     kv.init("w", np.zeros(1024, np.float32))
        ...     started = kv.metrics()
        ...     kv.push("w", np.ones(1024, np.float32))
        ...     kv.wait()
        ...     metrics = kv.metrics()
        >>> metrics["verbs"]["push"]["calls"], metrics["pushed_bytes"]
        (1, 4096)
        """
        return self._observing.counting.read()

    # Life

    def close(self) -> None:
        """Flush all pushes, wait for all ranks, and free the store's memory; collective.

        A second call does nothing.  After a failure has broken the store, close does not wait.  A
        rank that has left before, without another call that needs it, is not waited for.
        """
        self._waiting.close_store()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._waiting.leave_block(error)

    def __reduce__(self) -> NoReturn:
        self._context.session.refuse_pickling()
