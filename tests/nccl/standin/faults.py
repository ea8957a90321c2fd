"""What goes wrong on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Faults:
    """The script of one rank.

    Attributes
    ----------
    absent_from : int, optional
        The number of the collective, on each communicator, from which this rank never arrives.
    dies_in : int, optional
        The number of the collective whose launch this rank does not survive: `Died` is raised.
    async_errors : mapping of int to str
        What `async_error` says from its so many-th poll on, counted from 1.
    """

    absent_from: int | None = None
    dies_in: int | None = None
    async_errors: Mapping[int, str] = field(default_factory=dict)

    def async_error(self, poll: int) -> str | None:
        """What the `poll`-th poll says."""
        said = [number for number in self.async_errors if number <= poll]
        return self.async_errors[max(said)] if said else None
