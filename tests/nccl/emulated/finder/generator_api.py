"""Module of ours in the place of ``cupy.random._generator_api``, which has the vendor's runtime.

CuPy imports it with itself and looks up one class of it, so the import cannot be refused.
"""

from __future__ import annotations

WHY = (
    "layer 3b, CuPy on an emulated device: cupy.random._generator_api is refused, since it "
    "contains the vendor's runtime"
)


class FeistelBijection:
    """Class that CuPy looks up when it is imported, and calls where it draws permutations."""

    def __init__(self, *arguments: object) -> None:
        raise ImportError(WHY)


def __getattr__(name: str) -> object:
    # Python's own look-ups, such as __path__, are not of the module's interface.
    raise AttributeError(name) if name.startswith("__") else ImportError(WHY)
