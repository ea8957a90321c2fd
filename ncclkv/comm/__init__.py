"""Communicators: ranks that reduce and move buffers, and small host objects beside them."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ncclkv.comm.base import Communicator
    from ncclkv.comm.control import ObjectComm
    from ncclkv.comm.host.start import world
    from ncclkv.comm.types import Work

__all__ = ["Communicator", "ObjectComm", "Work", "world"]

_LATER = {
    "Communicator": "ncclkv.comm.base",
    "ObjectComm": "ncclkv.comm.control",
    "Work": "ncclkv.comm.types",
    "world": "ncclkv.comm.host.start",
}
"""Modules of the public names, imported at their first use: commands need a few modules alone."""

if not TYPE_CHECKING:  # a type checker would take any name for an attribute

    def __getattr__(name):
        """Import a public name at its first use."""
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(_import_module(_LATER[name]), name)
        return found


def __dir__() -> list[str]:
    """List the public names, without the modules that are internals."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
