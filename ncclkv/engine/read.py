"""`to_host`: copies an array to host memory, with the deadline of a collective."""

from __future__ import annotations

import numpy as np

from ncclkv.comm.base import Communicator
from ncclkv.engine.bucket_state import Array


def to_host(array: Array, comm: Communicator) -> Array:
    """Return a copy, in host memory, of an array in the kernels' memory.

    A plain copy would wait for the device without a deadline, and hide NCCL's errors.
    """
    on_host = np.empty(array.shape, array.dtype)
    comm.synchronize()
    comm.kernels.unpack(array, on_host)
    return on_host
