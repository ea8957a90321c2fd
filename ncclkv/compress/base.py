"""`Codec`: the interface of compressed forms of gradients; there are none yet.

`Communicator.all_to_all` and ``allgatherv``, with a fold between them, make a two-step sum of
encoded arrays.  Their ``then`` is called once they are complete.  On a GPU it is called at the
launch, and its kernels follow on the stream.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ncclkv.kernels.base import Array, Kernels


class Codec(Protocol):
    """A compressed form of gradients, which ranks exchange in place of the gradients.

    `ncclkv.engine.reduction.reduction_for` chooses the reduction that uses a codec.

    Attributes
    ----------
    name : str
        Name for error texts.
    summable : bool
        Whether the sum of payloads is the payload of the sum, so that an allreduce can add them.
    states : tuple of str
        Names of arrays that each rank keeps between pushes, with one element for each gradient.
    """

    name: str
    summable: bool
    states: tuple[str, ...]

    def nbytes(self, count: int, dtype: np.dtype[Any]) -> int:
        """Return the bytes of the payload of `count` elements."""

    def encode(
        self, kernels: Kernels, gradients: Array, payload: Array, residual: Array | None
    ) -> None:
        """Write the payload of `gradients`, and the error of the encoding to `residual`."""

    def decode_add(self, kernels: Kernels, payload: Array, total: Array) -> None:
        """Add the decoded payload to `total`."""
