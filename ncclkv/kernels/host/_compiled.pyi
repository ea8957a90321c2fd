"""The kernels in C, of ``c/compiled.c``.

Each returns whether it has done its work: it leaves arrays to NumPy, and has done nothing, when
they are not C-contiguous, or, where it computes, not all float32 or all float64 in the machine's
byte order.  Arrays may lie at any address.

All raise TypeError for a wrong number of arguments or an argument of a wrong kind, and ValueError
for arrays of different lengths and for one to be written that is read-only.
"""

from collections.abc import Sequence

from ncclkv.kernels.base import Array

def total(parts: Sequence[Array], out: Array, average: bool, stream: bool, /) -> bool:
    """Sum `parts`, in their order, into `out`, which may be one of them.

    Parameters
    ----------
    parts : sequence of ndarray
        At least one.
    out : ndarray
    average : bool
        Divide the sum by the number of parts.
    stream : bool
        Write past the caches.
    """

def sgd(
    weights: Array,
    gradients: Array,
    momenta: Array | None,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
    rescale: float,
    clip: float | None,
    /,
) -> bool:
    """Take one step, as ``ncclkv.kernels.host.update.sgd`` describes it."""

def copy(target: Array, source: Array, stream: bool, /) -> bool:
    """Copy the bytes of `source` to `target`, past the caches if `stream`; of any one dtype."""
