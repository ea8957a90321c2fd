"""`Span`: a range of a bucket that one collective reduces."""

from __future__ import annotations

from ncclkv.comm.base import Collective
from ncclkv.comm.types import Buffer


class Span:
    """Elements ``[lo, hi)`` of a bucket.

    Attributes
    ----------
    gradients, weights : ndarray, shape (hi - lo,)
    node_shared : bool
        Whether the ranks of the node share the weights, and update them together.
    label : str
        The name of its collectives, for errors.
    collective : Collective or None
        The reduction prepared for the last launch.
    prepared_for : (str, bool) or None
        The op of that reduction, and whether it writes to the weights.
    """

    __slots__ = (
        "collective",
        "gradients",
        "hi",
        "label",
        "lo",
        "node_shared",
        "prepared_for",
        "weights",
    )

    def __init__(
        self,
        lo: int,
        hi: int,
        gradients: Buffer,
        weights: Buffer,
        label: str,
        *,
        node_shared: bool = False,
    ) -> None:
        self.lo = lo
        self.hi = hi
        self.gradients = gradients[lo:hi]
        self.weights = weights[lo:hi]
        self.node_shared = node_shared
        self.label = label
        self.collective: Collective | None = None
        self.prepared_for: tuple[str, bool] | None = None
