"""fp16 and bf16: gradients rounded to 16 bits, which ranks sum as arrays of such a dtype.

The sum of ranks is ``float32(round16(sum_r float32(round16(g_r))))``, added in the order of ranks,
as every sum of 16-bit floats is.  An average is divided in float32, before the last rounding.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ncclkv.compress.declared import SCOPE, Parameter, flag
from ncclkv.kernels.base import Array
from ncclkv.kernels.host.chunks import ranges
from ncclkv.kernels.host.narrow import narrow, narrow_with_rest, widen

TILE = 16 * 1024
"""Elements of float64 that are rounded to float32 at a time."""

BYTES = 2
"""Bytes of an element of a payload."""


class Half:
    """A codec of 16 bits a gradient, rounded to nearest, ties to even.

    Parameters
    ----------
    error_feedback : bool
        Keep what the rounding loses in a residual, and add it to the next gradients.
    scope : str
        The sender: ``"rank"``, or the ranks of a node together (``"node"``).

    Attributes
    ----------
    unit : int
        Slices of a payload begin at multiples of so many elements, as keys of float64 do.
    wire_dtype : str
        NumPy's name of the dtype of payloads.  An array of uint16 stands for one of bfloat16.
    keeps_residual : bool
        As `error_feedback`.
    """

    name: ClassVar[str]
    wire_dtype: ClassVar[str]
    dtypes = ("float32", "float64")
    ops = ("sum", "avg", "max", "min")
    most_senders = sys.maxsize
    unit = 32
    declared = (Parameter("error_feedback", False, flag), SCOPE)

    def __init__(self, error_feedback: bool = False, scope: str = "rank") -> None:
        self.keeps_residual = error_feedback
        self.parameters: Mapping[str, Any] = {
            "type": self.name,
            "error_feedback": error_feedback,
            "scope": scope,
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.parameters})"

    def pays(self, shape: Sequence[int], senders: int) -> bool:
        return True

    def nbytes(self, count: int) -> int:
        """Return the bytes of `count` elements."""
        return BYTES * count

    def width(self, senders: int) -> int:
        """Return the bits of an element of a sum, which is rounded to 16."""
        return 8 * BYTES

    def packed_nbytes(self, count: int, senders: int) -> int:
        """Return the bytes of a sum of `count` elements."""
        return BYTES * count

    def encode(self, gradients: Array, residual: Array | None, payload: Array) -> None:
        """Round gradients, with the residual if there is one, to the payload.

        A residual becomes what the rounding has lost, and 0 where infinity or NaN is sent.  So a
        value that is not finite is sent once.

        Parameters
        ----------
        gradients : ndarray of float32 or float64, shape (n,)
            Those of float64 are rounded to float32 first.
        residual : ndarray of float32, shape (n,), or None
        payload : ndarray of `wire_dtype`, or of uint16, shape (n,)
        """
        words = _words(payload)
        if gradients.dtype == np.float32:
            _narrow(gradients, residual, words)
            return
        wide = np.empty(min(TILE, gradients.size), np.float32)
        for block in ranges(gradients.size, TILE):
            tile = wide[: block.stop - block.start]
            with np.errstate(all="ignore"):
                np.copyto(tile, gradients[block], casting="same_kind")
            _narrow(tile, None if residual is None else residual[block], words[block])

    def decode(self, payload: Array, out: Array) -> None:
        """Set `out`, an ndarray of float32 or float64, to the elements of a payload or of a sum."""
        words = _words(payload)
        if out.dtype == np.float32:
            widen(words, out)
            return
        wide = np.empty(min(TILE, out.size), np.float32)
        with np.errstate(invalid="ignore"):  # of a signalling NaN
            for block in ranges(out.size, TILE):
                tile = wide[: block.stop - block.start]
                widen(words[block], tile)
                out[block] = tile


class FP16(Half):
    """Gradients rounded to float16: from 65,520 on they become infinite.

    Examples
    --------
    >>> codec, payload, out = FP16(), np.empty(3, np.float16), np.empty(3, np.float32)
    >>> codec.encode(np.array([1.0, 2.0**-12 + 1, 7e4], np.float32), None, payload)
    >>> codec.decode(payload, out)
    >>> out
    array([ 1.,  1., inf], dtype=float32)
    """

    name = "fp16"
    wire_dtype = "float16"


class BF16(Half):
    """Gradients rounded to bfloat16, which has float32's range, and 8 bits of precision.

    Examples
    --------
    >>> codec, residual = BF16(error_feedback=True), np.zeros(2, np.float32)
    >>> payload, out = np.empty(2, np.uint16), np.empty(2, np.float32)
    >>> codec.encode(np.array([1.0078125, 257], np.float32), residual, payload)
    >>> codec.decode(payload, out)
    >>> out, residual
    (array([  1.0078125, 256.       ], dtype=float32), array([0., 1.], dtype=float32))
    """

    name = "bf16"
    wire_dtype = "bfloat16"


def _narrow(gradients: Array, residual: Array | None, words: Array) -> None:
    """Round gradients of float32, with the residual if there is one."""
    if residual is None:
        narrow(gradients, words)
    else:
        narrow_with_rest(gradients, residual, words)


def _words(payload: Array) -> Array:
    """Return a payload as the casts take it: bfloat16 as uint16."""
    return payload.view(np.uint16) if payload.dtype.kind == "V" else payload
