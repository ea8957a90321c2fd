"""Scripted faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Faults:
    """The script of one rank.

    Attributes
    ----------
    absent_from : int, optional
        Index of the first collective, on each communicator, at which this rank does not arrive.
    dies_in : int, optional
        Index of the collective whose launch raises `Died` on this rank.
    async_errors : mapping of int to str
        Texts of `async_error`, each from its numbered poll on, counted from 1.
    hangs : bool
        Whether calls that differ between ranks hang, as NCCL's do; else they are refused.
    """

    absent_from: int | None = None
    dies_in: int | None = None
    async_errors: Mapping[int, str] = field(default_factory=dict)
    hangs: bool = False

    def async_error(self, poll: int) -> str | None:
        """Return the error at the `poll`-th poll."""
        said = [look for look in self.async_errors if look <= poll]
        return self.async_errors[max(said)] if said else None
