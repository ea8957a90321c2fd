"""`StoredValues`: the parameters of a trainer, and the store's values of them."""

from __future__ import annotations

import ctypes
import sys
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncclkv.arrays import as_value
from ncclkv.arrays.memory import address
from ncclkv.errors import UsageError
from ncclkv.store.kvstore import KVStore

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t


class _Stored(NamedTuple):
    """A value in the store's own host memory, whose comparison takes a microsecond."""

    value: NDArray[Any]
    place: int
    nbytes: int


class StoredValues:
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
        self._repaired = store.repaired
        self._versions: dict[str, int | None] = {}
        self._stored: dict[str, _Stored] = {}
        self.note(self._names, self._values)

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

    def reset(self) -> None:
        """Give the store and all ranks rank 0's values of all parameters; collective."""
        self._first = None
        self._replace(range(len(self._names)))

    def check(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Refuse parameters that differ from the store's values, which a step would restore.

        Raises
        ------
        UsageError
        """
        repaired, self._repaired = self._repaired, self._store.repaired
        if repaired != self._repaired:
            return  # the store has replaced values, and the step brings them to the parameters
        for name, value in zip(names, values, strict=True):
            if (stored := self._stored.get(name)) is not None:
                place = _place_of(value, stored.nbytes)
                if place and not _compare(place, stored.place, stored.nbytes):
                    continue
            version = _version(value)
            if version is not None and version == self._versions[name]:
                continue
            if self._differs(name, value):
                raise UsageError(
                    f"step: parameter {name!r} was changed since the last step, and the store, "
                    f"which updates it, has another value; call reset_values of the Trainer on all "
                    f"ranks after a change, or create the Trainer with update_on_kvstore=False "
                    f"(after a load into the store: pull the parameters)"
                )

    def note(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Note that parameters have the store's values now."""
        for name, value in zip(names, values, strict=True):
            self._versions[name] = _version(value)

    def _replace(self, indices: Sequence[int]) -> None:
        """Give the store and all ranks rank 0's values of some parameters; collective."""
        if indices:
            names = [self._names[index] for index in indices]
            values = [self._values[index] for index in indices]
            self._store.reset(names, values, reset_states=False)
            self._store.pull(names, out=values)
            self.note(names, values)

    def _differs(self, name: str, value: Any) -> bool:
        """Return whether a parameter differs from the store's value in a bit."""
        stored: Any = self._store.value(name)
        if type(value) is type(stored) and not isinstance(value, np.ndarray):
            return _differs_on_gpu(value, stored)
        mine, kept = _on_host(value), _on_host(stored)
        if kept is stored:
            self._stored[name] = _Stored(stored, address(stored), stored.nbytes)
        return bool(_compare(address(mine), address(kept), mine.nbytes))


def _differs_on_gpu(value: Any, stored: Any) -> bool:
    """Return whether two arrays of CuPy differ in a bit; False while a stream records a capture."""
    cupy = sys.modules["cupy"]
    if cupy.cuda.get_current_stream().is_capturing():
        return False  # a wait of the host would end the capture
    mine, theirs = (cupy.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (value, stored))
    return bool((mine != theirs).any())


def _place_of(value: Any, nbytes: int) -> int:
    """Return the address of a parameter of so many bytes in C order in host memory, else 0."""
    if type(value) is np.ndarray:
        return address(value) if value.flags.c_contiguous and value.nbytes == nbytes else 0
    if getattr(value, "data_ptr", None) is None or value.is_cuda or value.is_complex():
        return 0  # complex tensors may be lazy conjugates
    place: int = value.data_ptr()
    return place if value.is_contiguous() and value.nbytes == nbytes else 0


def _version(value: Any) -> int | None:
    """Return the count of writes to a tensor on a GPU, whose comparison would cost a wait.

    The count leaves out writes through ``.data``, so other arrays are compared.
    """
    if not getattr(value, "is_cuda", False) or value.is_inference():
        return None
    count: int = value._version
    return count


def _on_host(value: Any) -> NDArray[Any]:
    """Return an array's elements in C order in host memory."""
    if getattr(value, "is_cuda", False):
        value = value.detach().cpu()
    elif not isinstance(value, np.ndarray) and hasattr(value, "get"):
        value = value.get()  # CuPy's
    array = as_value(value, "a parameter")
    return array if array.flags.c_contiguous else array.copy()


def _checksum(value: Any) -> int:
    """Return an integer that nearly always differs after a change of the elements."""
    elements: Any = _on_host(value).reshape(-1).view(np.uint8)
    return zlib.crc32(elements)
