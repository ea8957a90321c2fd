"""Arithmetic without NumPy's warnings of overflow, division by zero and the like."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import numpy as np

_IN_CONTEXTS = int(np.__version__.split(".")[0]) >= 2
"""True when NumPy keeps its error state in a context variable: NumPy 2; else in the thread."""


class Quiet:
    """Calls functions without such warnings.

    To enter a context in which they are off costs a twentieth of `numpy.errstate`, which short
    reductions would spend a fifth of their time in.  An object is one thread's at a time.
    """

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        if _IN_CONTEXTS:
            self._context.run(np.seterr, all="ignore")

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function that calls none of the user's."""
        if _IN_CONTEXTS:
            self._context.run(function, *arguments)
        else:
            with np.errstate(all="ignore"):
                function(*arguments)
