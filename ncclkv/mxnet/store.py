"""`NCCLKV`: a store as MXNet's trainers call it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mxnet

import ncclkv
from ncclkv.mxnet.ndarray_updaters import OnNDArrays
from ncclkv.mxnet.optimizers import Followed
from ncclkv.tracebacks import public, public_init, public_methods

_SYNCHRONOUS = {"dist": "dist_sync", "nccl": "dist_device_sync", "threads": "dist_sync"}
"""Types that Module recognises as synchronous: it then divides gradients by the count of ranks."""


@public_init
@public_methods()
class NCCLKV(mxnet.kvstore.KVStoreBase):  # type: ignore[misc]  # MXNet has no types
    """A store of ncclkv with MXNet's interface; arrays may be NDArrays.

    All verbs of `ncclkv.KVStore` may be called.  The verbs below differ: they take MXNet's
    optimizers, and updaters of NDArrays.

    Parameters
    ----------
    store : str or ncclkv.KVStore
        A name for `ncclkv.create`, or a store.
    **options
        Options of a new store.
    """

    def __init__(self, store: str | ncclkv.KVStore = "dist_sync", **options: Any) -> None:
        if not isinstance(store, ncclkv.KVStore):
            store = ncclkv.create(store, **options)
        self._store = store
        self._followed: Followed | None = None

    def __getattr__(self, name: str) -> Any:
        """Return a verb of the store that needs no conversion."""
        if name == "_store":  # a store that could not be created
            raise AttributeError(name)
        return getattr(self._store, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._store)})

    def __contains__(self, key: object) -> bool:
        return key in self._store

    def __repr__(self) -> str:
        return f"<MXNet's interface of {self._store!r}>"

    def __enter__(self) -> NCCLKV:
        return self

    def __exit__(self, *error: Any) -> None:
        self._store.__exit__(*error)

    # Transfers

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Give all ranks rank 0's value, as ``ncclkv.KVStore.broadcast``."""
        self._store.broadcast(key, value, out, priority)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Push, with the hyperparameters that MXNet's optimizer has now."""
        with self._following(key):
            self._store.push(key, value, priority)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push, then pull, with the hyperparameters that MXNet's optimizer has now."""
        with self._following(key):
            self._store.pushpull(key, value, out, priority)

    @contextmanager
    def _following(self, key: Any) -> Iterator[None]:
        """Take hyperparameters from MXNet's optimizer before a push; give it the count after it."""
        if self._followed is None:
            yield
            return
        self._followed.follow(key)
        yield
        self._followed.count()

    # Updates

    def set_optimizer(self, optimizer: Any) -> None:
        """Run an optimizer on the store.

        Parameters
        ----------
        optimizer : mxnet.optimizer.Optimizer or ncclkv.optimizer.Optimizer
            One of MXNet's is followed: the program may change its learning rate, `rescale_grad`,
            factors and schedule later.

        Raises
        ------
        NotSupported
            When ncclkv has no optimizer of that name.
        """
        followed = None
        if isinstance(optimizer, mxnet.optimizer.Optimizer):
            followed = Followed(optimizer)
            optimizer = followed.ours
        self._store.set_optimizer(optimizer)
        self._followed = followed

    def set_updater(self, updater: Any) -> None:
        """Fold sums into values by a function of NDArrays, which changes the last in place."""
        self._store.set_updater(OnNDArrays(updater) if callable(updater) else updater)
        self._followed = None

    _set_updater = set_updater

    @property
    def _updater(self) -> Followed | None:
        """The optimizer that ``Trainer.load_states`` reads."""
        return self._followed

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's state to a directory; collective."""
        self._store.save_optimizer_states(fname, dump_optimizer)

    def load_optimizer_states(self, fname: str) -> None:
        """Take the optimizer's state, and its hyperparameters if they were saved; collective."""
        self._store.load_optimizer_states(fname)
        if self._followed is not None:
            self._followed.lead()

    # Identity

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Return whether the store has a capability."""
        return ncclkv.KVStore.is_capable(capability)

    def _barrier(self) -> None:
        self._store.barrier()

    @property
    def type(self) -> str:
        """The store's name, or a name of the same ranks with ``_sync``, which Module needs."""
        return _SYNCHRONOUS.get(self._store.type, self._store.type)

    @property
    def rank(self) -> int:
        """The index of this rank."""
        return self._store.rank

    @property
    def num_workers(self) -> int:
        """The count of ranks."""
        return self._store.num_workers


@public
def create(name: str = "dist_sync", **options: Any) -> NCCLKV:
    """Make a store for the argument `kvstore` of MXNet's trainers; collective.

    Parameters
    ----------
    name : str
        A name for `ncclkv.create`.
    **options
        Its options, such as ``update_on="sharded"``.

    Examples
    --------
    >>> kv = create("local", bucket_bytes=0)
    >>> kv.num_workers
    1
    >>> kv.close()
    """
    return NCCLKV(name, **options)
