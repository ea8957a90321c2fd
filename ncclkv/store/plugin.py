"""KVStoreBase: the interface of all stores, and the names of stores of other packages."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from ncclkv.arguments import check_known
from ncclkv.errors import NotSupported, UsageError
from ncclkv.frames import warn
from ncclkv.tracebacks import public

Registered = TypeVar("Registered", bound=type)

BUILT_IN: set[str] = set()
"""Names of the built-in stores, added by `ncclkv.store.factories`; no class may take them."""


class KVStoreBase:
    """Interface of a store that another package makes, and ``ncclkv.create`` finds by name.

    The verbs are those of MXNet's ``KVStoreBase``.  A verb that a store does not override raises
    `NotSupported`, which is a `NotImplementedError`.

    Examples
    --------
    >>> import ncclkv
    >>> @ncclkv.KVStoreBase.register
    ... class Alone(ncclkv.KVStoreBase):
    ...     type, rank, num_workers = "alone", 0, 1
    ...     @staticmethod
    ...     def is_capable(capability):
    ...         return False
    >>> ncclkv.create("alone").rank
    0
    """

    OPTIMIZER: ClassVar[str] = "optimizer"
    """The capability of running an optimizer on the store, for `is_capable`."""

    kv_registry: ClassVar[dict[str, type]] = {}

    @staticmethod
    @public
    def register(cls: Registered) -> Registered:
        """Let ``create`` find a class by its name in lower case; usable as a decorator.

        Parameters
        ----------
        cls : type
            Called without arguments by ``create``.

        Returns
        -------
        type
            The class itself.

        Raises
        ------
        UsageError
            When `cls` is not a class, or has the name of a built-in store.
        """
        if not isinstance(cls, type):
            raise UsageError(
                f"register takes a class, not {type(cls).__name__}; write @KVStoreBase.register "
                f"above a class statement"
            )
        name = cls.__name__.lower()
        if name in BUILT_IN:
            raise UsageError(
                f"register: class {cls.__qualname__} would be created by {name!r}, which is the "
                f"name of a built-in store; name the class differently"
            )
        if name in KVStoreBase.kv_registry:
            old = KVStoreBase.kv_registry[name]
            warn(
                f"new store {cls.__module__}.{cls.__qualname__} replaces "
                f"{old.__module__}.{old.__qualname__} under the name {name!r}"
            )
        KVStoreBase.kv_registry[name] = cls
        return cls

    def __dir__(self) -> list[str]:
        """Return the public names, for completion."""
        return [
            name for name in super().__dir__() if name.startswith("__") or not name.startswith("_")
        ]

    def _missing(self, verb: str) -> NotSupported:
        return NotSupported(f"{type(self).__name__} does not offer {verb}")

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Give all ranks rank 0's value."""
        raise self._missing("broadcast")

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Sum over all ranks."""
        raise self._missing("pushpull")

    def set_optimizer(self, optimizer: Any) -> None:
        """Run an optimizer on the store."""
        raise self._missing("set_optimizer")

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Return whether the store has a capability."""
        raise NotSupported("this store does not offer is_capable")

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's state."""
        raise self._missing("save_optimizer_states")

    def load_optimizer_states(self, fname: str) -> None:
        """Read the optimizer's state."""
        raise self._missing("load_optimizer_states")

    @property
    def type(self) -> str:
        """The store's name."""
        raise self._missing("type")

    @property
    def rank(self) -> int:
        """The index of this worker."""
        raise self._missing("rank")

    @property
    def num_workers(self) -> int:
        """The count of workers."""
        raise self._missing("num_workers")


def is_capability(capability: str) -> bool:
    """Return True for the only capability, ``"optimizer"``; refuse any other name.

    Raises
    ------
    UsageError
    """
    lower = capability.lower() if isinstance(capability, str) else capability
    check_known("capability", lower, (KVStoreBase.OPTIMIZER,))
    return True
