"""A replacement of ``cupy.random._generator_api``, which has the vendor's runtime.

CuPy imports the module at its own import, and reads one class, so the import must succeed.
"""

from __future__ import annotations

WHY = (
    "layer 3b, CuPy on an emulated device: cupy.random._generator_api is refused, since it "
    "contains the vendor's runtime"
)


class FeistelBijection:
    """The class that CuPy reads at import, and calls to draw permutations."""

    def __init__(self, *arguments: object) -> None:
        raise ImportError(WHY)


def __getattr__(name: str) -> object:
    # Python reads names such as __path__, which are not of the module's interface.
    raise AttributeError(name) if name.startswith("__") else ImportError(WHY)
