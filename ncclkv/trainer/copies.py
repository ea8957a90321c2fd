"""`Copies`: the parameters of a trainer, and the store's values of them."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclkv.arrays import as_value
from ncclkv.arrays.memory import address
from ncclkv.errors import UsageError
from ncclkv.store.kvstore import KVStore

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t


class Copies:
    """Parameters with their values in a store, which were equal after the last step.

    Parameters
    ----------
    store : KVStore
    names : sequence of str
    values : sequence of arrays
        The parameters, which take rank 0's values.
    """

    def __init__(self, store: KVStore, names: Sequence[str], values: Sequence[Any]) -> None:
        self._store = store
        self._names, self._values = list(names), list(values)
        store.broadcast(self._names, self._values, self._values)
        self._first: list[int] | None = [_checksum(value) for value in values]

    def start(self) -> None:
        """Give all ranks rank 0's present values, if a rank has changed a value; collective.

        Programs load parameters after they have made the trainer.  Only the first call acts.

        Raises
        ------
        UsageError
            When a value was changed, and the store is in a block.
        """
        first, self._first = self._first, None
        if first is None:
            return
        changed = [
            _checksum(value) != before and self._differs(name, value)
            for name, value, before in zip(self._names, self._values, first, strict=True)
        ]
        try:
            changed = self._store.allreduce(np.array(changed), "max").tolist()
        except UsageError as error:
            if any(changed):
                raise UsageError(
                    f"the first step is in a block, and parameter "
                    f"{self._names[changed.index(True)]!r} was changed since the Trainer was "
                    f"created; call reset_values before the block"
                ) from error
            return
        self._replace([index for index, each in enumerate(changed) if each])

    def _replace(self, indices: Sequence[int]) -> None:
        """Give the store and all ranks rank 0's values of some parameters; collective."""
        if indices:
            names = [self._names[index] for index in indices]
            values = [self._values[index] for index in indices]
            self._store.reset(names, values, reset_states=False)
            self._store.pull(names, out=values)

    def _differs(self, name: str, value: Any) -> bool:
        """Return whether a parameter differs from the store's value in a bit."""
        mine, stored = _on_host(value), _on_host(self._store.value(name))
        return bool(_compare(address(mine), address(stored), mine.nbytes))


def _on_host(value: Any) -> NDArray[Any]:
    """Return an array's elements in C order in host memory."""
    if getattr(value, "is_cuda", False):
        value = value.detach().cpu()
    elif not isinstance(value, np.ndarray) and hasattr(value, "get"):
        value = value.get()  # CuPy's
    array = as_value(value, "a parameter")
    return array if array.flags.c_contiguous else array.copy()


def _checksum(value: Any) -> int:
    """Return a number that is nearly always another one after a change of the elements."""
    elements: Any = _on_host(value).reshape(-1).view(np.uint8)
    return zlib.crc32(elements)
