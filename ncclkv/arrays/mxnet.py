"""MXNet's NDArrays in host memory.

DLPack does not serve them: MXNet 1.9 exports no array in the layout of oneDNN, which its
convolutions give to weights.  The call used here brings such an array into C order first.
"""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclkv.arrays import device
from ncclkv.arrays.dtypes import bfloat16
from ncclkv.errors import NotSupported


def recognises(x: Any) -> bool:
    """Return whether `x` is MXNet's."""
    array = getattr(sys.modules.get("mxnet.ndarray"), "NDArray", None)
    return array is not None and isinstance(x, array)


def view(x: Any, what: str, *, write: bool) -> NDArray[Any]:
    """Wait for MXNet's engine to complete its writes to `x`, to write also its reads; view `x`."""
    _check(x, what, write)
    shape, dtype = x.shape, np.dtype(x.dtype)
    if dtype.names == ("bfloat16",):  # MXNet's form of it
        dtype = bfloat16(what)
    if write:
        wait_to_write(x)
    else:
        x.wait_to_read()
    base: Any = sys.modules["mxnet.base"]
    where = ctypes.c_void_p()
    base.check_call(base._LIB.MXNDArrayGetData(x.handle, ctypes.byref(where)))
    if not where.value:  # an array without elements has no memory
        return np.empty(shape, dtype)
    interface = {
        "version": 3,
        "shape": shape,
        "typestr": f"|V{dtype.itemsize}",
        "data": (where.value, not write),
    }
    # The view keeps its owner, and so `x` and its memory.
    owner: Any = SimpleNamespace(__array_interface__=interface, array=x)
    return np.asarray(owner).view(dtype)


def wait_to_write(x: Any) -> None:
    """Wait until MXNet's engine has completed all reads and writes of an NDArray."""
    base: Any = sys.modules["mxnet.base"]
    base.check_call(base._LIB.MXNDArrayWaitToWrite(x.handle))


def _check(x: Any, what: str, write: bool) -> None:
    """Refuse arrays that are not dense memory of the host."""
    if x.context.device_type == "gpu":
        subject = f"an MXNet {type(x).__name__} on {x.context}"
        raise device.refusal(subject, ".as_in_context(mxnet.cpu())", what, write=write)
    if x.stype != "default":
        raise NotSupported(
            f"{what}: a {type(x).__name__} is sparse ({x.stype}), and stores hold dense values; "
            "pass its .tostype('default')"
        )
