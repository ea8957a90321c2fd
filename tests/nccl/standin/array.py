"""Device arrays with arithmetic, like CuPy's arrays on a device; NumPy computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

if TYPE_CHECKING:
    from tests.nccl.standin.streams import RecordingStreams


class Computed(np.ndarray):  # type: ignore[type-arg]
    """Numbers on the host that CuPy would return as an array on the device."""


class StandInArray(NDArrayOperatorsMixin, cupy.ndarray):  # type: ignore[misc]
    """A cupy.ndarray over host memory, whose arithmetic is queued on the current stream.

    An operation that makes a new array returns one of NumPy's, `Computed`, and waits for it. Other
    arrays of the host are refused in arithmetic and assignments, as CuPy refuses them.
    """

    @property
    def _streams(self) -> RecordingStreams:
        """Return the streams of the device that has the array's memory."""
        streams: RecordingStreams = self.data.mem._owner.streams
        return streams

    def get(self, *args: Any, **kwargs: Any) -> Any:
        return self._streams.get(self)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        (out,) = kwargs.pop("out", (None,))
        plain = [_taken(each) for each in inputs]
        result = getattr(ufunc, method)(*plain, **kwargs)
        if out is None:
            return np.asarray(result).view(Computed)
        out._write(..., result)
        return out

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return func(*map(_plain, args), **{name: _plain(each) for name, each in kwargs.items()})

    def __setitem__(self, where: Any, values: Any) -> None:
        if values is not self:  # after an operator in place
            self._write(where, _taken(values))

    def _write(self, where: Any, values: Any) -> None:
        """Write numbers of the host, in the order of the current stream."""
        self._streams.write(cupy.ndarray.__getitem__(self, where), values)

    @property
    def flat(self) -> Any:
        return self.get().flat

    def sum(self, *args: Any, **kwargs: Any) -> Any:
        return self.get().sum(*args, **kwargs)

    def all(self, *args: Any, **kwargs: Any) -> Any:
        return self.get().all(*args, **kwargs)

    def astype(self, dtype: Any, *args: Any, copy: bool = True, **kwargs: Any) -> Any:
        if self.dtype == dtype and not copy:
            return self
        return self.get().astype(dtype)

    def tolist(self) -> Any:
        return self.get().tolist()

    def copy(self, order: str = "C") -> Any:
        return self.get()

    def fill(self, value: Any) -> None:
        self[...] = value

    def __float__(self) -> float:
        return float(self.get())

    def __bool__(self) -> bool:
        return bool(self.get())


def _taken(item: Any) -> Any:
    """Return an operand that CuPy accepts; raise CuPy's error for another."""
    if type(item) is np.ndarray:
        raise TypeError(f"Unsupported type {type(item)}")
    return item.get() if isinstance(item, StandInArray) else item


def _plain(item: Any) -> Any:
    """Return NumPy's view of a device array, and other objects unchanged."""
    if isinstance(item, (list, tuple)):
        return type(item)(_plain(each) for each in item)
    return item.get() if isinstance(item, StandInArray) else item
