"""Arrays of other libraries in host memory, through DLPack.

NumPy 2.1 and later requests a versioned capsule, with a flag for read-only memory.  Without the
flag, by an older NumPy or exporter, the view is read-only: `value` takes the array, and `out`
refuses it.  A write to memory that its library holds constant would be a silent error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclkv.arrays import device
from ncclkv.errors import NotSupported, UsageError

# kDLCPU, kDLCUDAHost and kDLROCMHost of dlpack.h: memory that the host reads as its own.
_HOST_DEVICES = (1, 3, 11)


def recognises(x: Any) -> bool:
    """Return whether `x` offers DLPack."""
    offers = hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")
    return offers and not isinstance(x, type)  # a class has the attributes of its arrays


def view(x: Any, what: str, *, write: bool) -> NDArray[Any]:
    """Return a NumPy view of the memory of `x`."""
    if write:
        refuse_jax(x, what)
    try:
        on_host = int(x.__dlpack_device__()[0]) in _HOST_DEVICES
        array = np.from_dlpack(x) if on_host else None
    # The other library may raise any exception; nothing was sent yet, so only this call fails.
    except Exception as error:
        raise NotSupported(
            f"{what}: NumPy cannot view {device.describe(x)} through DLPack "
            f"({type(error).__name__}: {error}); pass it as a NumPy array"
        ) from error
    if array is None:
        raise device.refusal(device.describe(x), device.copy_of(x), what, write=write)
    if write and not array.flags.writeable:
        raise UsageError(
            f"{what}: out is read-only: {device.describe(x)} has no DLPack flag that allows writes "
            "(the flag needs DLPack 1.0 in its library, and NumPy 2.1 here); pass a NumPy array"
        )
    return array


def refuse_jax(x: Any, what: str) -> None:
    """Refuse a JAX array as out: compiled JAX programs rely on constant arrays."""
    if type(x).__module__.partition(".")[0] in ("jax", "jaxlib"):
        raise UsageError(
            f"{what}: out is a JAX array, which cannot be written; "
            "pull without out and pass the result to jax.numpy.asarray"
        )
