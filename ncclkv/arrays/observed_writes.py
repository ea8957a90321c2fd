"""Arrays whose libraries take part in each write of a store to their memory.

torch counts the write for autograd.  MXNet's engine may still compute with the array, if the
program has begun such work since the store viewed the array, as inside a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ncclkv.arrays import mxnet, torch


def observed(given: Any) -> list[Any]:
    """Return the tensors and NDArrays of an array, or of a list of arrays and lists, in order."""
    if isinstance(given, (list, tuple)):
        if {np.ndarray}.issuperset(map(type, given)):
            return []
        return [array for item in given for array in observed(item)]
    return [given] if torch.recognises(given) or mxnet.recognises(given) else []


def before_write(arrays: Sequence[Any]) -> None:
    """Let the libraries of arrays take part in a write, which follows at once."""
    for array in arrays:
        if mxnet.recognises(array):
            mxnet.wait_to_write(array)
        else:
            torch.mark_written(array)
