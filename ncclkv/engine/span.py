"""`Span`: a range of a bucket that one collective reduces."""

from __future__ import annotations

from dataclasses import dataclass

from ncclkv.comm.base import Collective
from ncclkv.comm.types import Buffer


@dataclass(eq=False, slots=True)
class Span:
    """Elements ``[lo, hi)`` of a bucket.

    Attributes
    ----------
    gradients, weights : ndarray, shape (hi - lo,)
        The range of the bucket's arrays.
    label : str
        Name of its collectives, for errors.
    node_shared : bool
        Whether the ranks of the node share the weights, and update them together.
    collective : Collective or None
        The reduction prepared for the last launch.
    prepared_for : (str, bool) or None
        The op of that reduction, and whether it writes to the weights.
    """

    lo: int
    hi: int
    gradients: Buffer
    weights: Buffer
    label: str
    node_shared: bool = False
    collective: Collective | None = None
    prepared_for: tuple[str, bool] | None = None
