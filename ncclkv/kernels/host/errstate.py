"""Error state: arithmetic without NumPy's warnings of overflow or division by zero."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import numpy as np

_IN_CONTEXTS = int(np.__version__.split(".")[0]) >= 2
"""True if NumPy keeps its error state in a context variable (NumPy 2), not in the thread."""


class Quiet:
    """Calls functions without NumPy's warnings.

    A prepared context costs a twentieth of `numpy.errstate`, in which short reductions would spend
    a fifth of their time.  Only one thread at a time may use an object.
    """

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        if _IN_CONTEXTS:
            self._context.run(np.seterr, all="ignore")

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function, which must not call the user's code."""
        if _IN_CONTEXTS:
            self._context.run(function, *arguments)
        else:
            with np.errstate(all="ignore"):
                function(*arguments)
