"""topk: the largest gradients, with their indices; the others stay in the residual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ncclkv.compress.declared import SCOPE, Parameter, share


class TopK:
    """The `kept` gradients of a key whose magnitude with the residual is largest.

    Parameters
    ----------
    ratio : float
        Share of a key's gradients that is sent, above 0 and at most 1.
    scope : str
        The sender: ``"rank"``, or the ranks of a node together (``"node"``).

    Examples
    --------
    >>> TopK(ratio=0.5).kept(5), TopK().kept(5)
    (2, 1)
    """

    name = "topk"
    declared = (Parameter("ratio", 0.01, share), SCOPE)
    keeps_residual = True

    def __init__(self, ratio: float = 0.01, scope: str = "rank") -> None:
        self.ratio = ratio
        self.parameters: Mapping[str, Any] = {"type": self.name, "ratio": ratio, "scope": scope}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.parameters})"

    def kept(self, count: int) -> int:
        """Return the number of gradients that are sent, of `count` ones of a key."""
        return min(count, max(1, round(self.ratio * count)))

    def nbytes(self, count: int) -> int:
        """Return the bytes of the payload of `count` gradients of a key."""
        return 8 * self.kept(count)
