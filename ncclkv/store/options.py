"""Options: the arguments of `create` that describe a store, apart from its ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from ncclkv.arguments import check_length, nearest
from ncclkv.comm.base import Communicator
from ncclkv.engine.placement import Placement, placement
from ncclkv.errors import UsageError
from ncclkv.table.cost import AUTO, DEFAULT_BUCKET_BYTES

MISSING = ("error", "zeros")
NONFINITE = ("ignore", "raise", "skip_step")


@dataclass(frozen=True)
class Options:
    """The options of a store, as `create` describes them."""

    update_on: str = "every_rank"
    root: int = 0
    bucket_bytes: Any = DEFAULT_BUCKET_BYTES
    missing: str = "error"
    nonfinite: str = "ignore"
    verify_every: int = 0
    repair: bool = False
    reproducible: bool = False

    def placement(self, comm: Communicator) -> Placement:
        """Check all options, and return the placement.

        Raises
        ------
        UsageError
            When an option is wrong.
        """
        for name, value in vars(self).items():
            check_length(name, value)
        if self.root is None:
            raise UsageError(f"root=None is not a rank: give an int from 0 to {comm.size - 1}")
        chosen = placement(self.update_on, self.root, comm)
        measured = isinstance(self.bucket_bytes, str) and self.bucket_bytes == AUTO
        if not (measured or _is_count(self.bucket_bytes)):
            raise UsageError(
                f"bucket_bytes={self.bucket_bytes!r} is not a number of bytes; give an int of 0 or "
                f"more, or {AUTO!r} to have it measured"
            )
        _one_of("missing", self.missing, MISSING)
        _one_of("nonfinite", self.nonfinite, NONFINITE)
        if not _is_count(self.verify_every):
            raise UsageError(
                f"verify_every={self.verify_every!r} is not a number of steps; give an int of 0 or "
                f"more, 0 for never"
            )
        for name in ("repair", "reproducible"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise UsageError(f"{name}={getattr(self, name)!r} is not a bool")
        return chosen

    def items(self) -> list[str]:
        """Return the options as ranks compare them."""
        return [f"{name}={value}" for name, value in asdict(self).items()]

    def given(self) -> list[str]:
        """Return the names of the options that differ from their defaults."""
        return [each.name for each in fields(self) if getattr(self, each.name) != each.default]


def _is_count(value: Any) -> bool:
    """Return whether a value is a whole number of 0 or more."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return whole and value >= 0


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    """Refuse an option that is not among the known ones."""
    if not (isinstance(value, str) and value in known):
        raise UsageError(
            f"unknown {name}={value!r}; {nearest(value, known)}choose {' or '.join(known)}"
        )
