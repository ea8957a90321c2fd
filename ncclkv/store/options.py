"""Options: the arguments of `create` that describe a store, except its ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from ncclkv.arguments import check_count, check_flag, check_known, check_length
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
        if not (isinstance(self.bucket_bytes, str) and self.bucket_bytes == AUTO):
            check_count("bucket_bytes", self.bucket_bytes, 0, f", or {AUTO!r} to have it measured")
        check_known("missing", self.missing, MISSING)
        check_known("nonfinite", self.nonfinite, NONFINITE)
        check_count("verify_every", self.verify_every, 0, ", 0 for never")
        check_flag("repair", self.repair)
        check_flag("reproducible", self.reproducible)
        return chosen

    def items(self) -> list[str]:
        """Return the options as ranks compare them."""
        return [f"{name}={value}" for name, value in asdict(self).items()]

    def given(self) -> list[str]:
        """Return the names of the options that differ from their defaults."""
        return [each.name for each in fields(self) if getattr(self, each.name) != each.default]
