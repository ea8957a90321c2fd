"""Updaters that compute with MXNet's NDArrays."""

from __future__ import annotations

from typing import Any

import mxnet

from ncclkv.arrays.mxnet import wait_to_write


class OnNDArrays:
    """An updater of NDArrays, such as MXNet's own optimizer, as an updater of the store's arrays.

    Parameters
    ----------
    updater : callable
        ``updater(key, input, stored)`` changes `stored` in place, such as
        ``mx.optimizer.get_updater(mx.optimizer.DCASGD())``.
    """

    def __init__(self, updater: Any) -> None:
        self._updater = updater
        self.__name__ = getattr(updater, "__name__", type(updater).__name__)  # for error texts

    def update(self, key: Any, input: Any, stored: Any) -> Any:
        """Call the updater on NDArrays in the store's memory."""
        arrays = [mxnet.nd.from_dlpack(each.__dlpack__()) for each in (input, stored)]
        result = self._updater(key, *arrays)
        for array in arrays:
            wait_to_write(array)
        # An in-place operation, as a lambda has it, returns the array itself.
        return None if result is arrays[1] else result
