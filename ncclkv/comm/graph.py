"""What a captured block of launches becomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ncclkv.comm.base import Work


class Graph(ABC):
    """What was launched in a `Communicator.capture`, to be launched again, any number of times.

    Attributes
    ----------
    calls : list of str
        Its collectives, in words; they must be alike on all ranks.
    """

    calls: list[str]

    @abstractmethod
    def keep(self, *objects: object) -> None:
        """Refer to what is launched again, such as the arrays that kernels read and write."""

    @abstractmethod
    def launch(self) -> Work:
        """Do it all, in the order in which it was captured; collective."""
