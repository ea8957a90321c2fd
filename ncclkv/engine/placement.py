"""`Placement`: the ranks that receive sums and update, and the step before a pull.

=============  ==========================  ====================  ================================
``update_on``  a push reduces to           the updater runs on   a pull first
=============  ==========================  ====================  ================================
every_rank     every rank (allreduce)      every rank            nothing
root           the root (reduce)           the root alone        broadcasts what the root changed
=============  ==========================  ====================  ================================
"""

from __future__ import annotations

from dataclasses import dataclass

from ncclkv.comm.base import Communicator
from ncclkv.comm.buffers import check_root
from ncclkv.comm.types import EVERYONE, Root, To
from ncclkv.errors import NotSupported, UsageError


@dataclass(frozen=True)
class Placement:
    """A placement as one rank sees it.

    Attributes
    ----------
    name : str
        The ``update_on`` it was made from.
    root : int or None
        The only rank that receives sums and updates; None when every rank does.
    updates : bool
        Whether this rank updates.
    to : To
        Destination of the sums.
    """

    name: str
    root: int | None
    updates: bool
    to: To

    @property
    def owner(self) -> str:
        """Return the ranks that update, in words."""
        return "every rank" if self.root is None else f"rank {self.root}"


def placement(update_on: str, root: int, comm: Communicator) -> Placement:
    """Return the placement of that name."""
    known = isinstance(update_on, str)
    if known and update_on == "sharded":
        raise NotSupported("update_on='sharded' is not in this version; use every_rank or root")
    if not (known and update_on in ("every_rank", "root")):
        raise UsageError(f"unknown update_on={update_on!r}; choose every_rank or root")
    check_root(root, comm.size)
    if update_on == "every_rank":
        return Placement(update_on, None, True, EVERYONE)
    return Placement(update_on, int(root), comm.rank == root, Root(int(root)))
