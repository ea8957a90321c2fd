"""Agreement: ranks exchange the arguments of a call, and continue if all arguments are equal.

The verbs are ``create``, ``init``, ``reset``, ``broadcast``, ``set_updater``, ``set_optimizer``,
``capture``, ``save`` and ``load``.  If arguments differ, or the call fails on some ranks only, all
ranks raise `SpecMismatch`.  The exchange uses `ncclkv.comm.control.ObjectComm`: pickled objects in
messages with tags of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

from ncclkv.comm.base import Communicator
from ncclkv.comm.types import ALIGNMENT
from ncclkv.engine.storage import Array
from ncclkv.errors import SpecMismatch

Made = TypeVar("Made")

# Count of ranks that a message shows; it counts the rest.
_SHOWN = 8


def agree(
    comm: Communicator,
    verb: str,
    items: Sequence[str],
    error: Exception | None = None,
    note: Any = None,
) -> list[Any]:
    """Make sure that all ranks have the same `items`; collective.

    Parameters
    ----------
    comm : Communicator
    verb : str
        The call, for messages.
    items : sequence of str
        Arguments of this rank's call, such as the spec of each key.
    error : Exception, optional
        Exception of this rank's call.  When every rank has one, each raises its own.
    note : Any
        An object to send to all ranks with the items.

    Returns
    -------
    list
        The notes of all ranks, in rank order.

    Raises
    ------
    SpecMismatch
        On every rank, when items differ or only some ranks have an error.
    """
    if comm.size == 1:
        if error is not None:
            raise error
        return [note]
    text = None if error is None else f"{type(error).__name__}: {error}"
    proposals = comm.control.allgather((list(items), text, note), f"agreement on {verb}")
    failed = [(rank, text) for rank, (_, text, _) in enumerate(proposals) if text is not None]
    if error is not None and len(failed) == comm.size:
        raise error
    if failed:
        by_rank = [f"rank {rank} raises {text}" for rank, text in failed]
        message = _message(comm, verb, by_rank, "the other ranks raise nothing")
        raise SpecMismatch(message, ranks=[rank for rank, _ in failed]) from error
    for given in zip_longest(*(items for items, _, _ in proposals), fillvalue="nothing"):
        if any(other != given[0] for other in given):
            by_rank = [f"rank {rank} has {item}" for rank, item in enumerate(given)]
            raise SpecMismatch(
                _message(comm, verb, by_rank, "make the same call on all ranks"),
                ranks=[rank for rank, item in enumerate(given) if item != given[comm.rank]],
            )
    return [note for _, _, note in proposals]


def propose(
    comm: Communicator, verb: str, make: Callable[[], tuple[Made, Sequence[str]]], note: Any = None
) -> tuple[Made, list[Any]]:
    """Make an object on every rank, or on none; collective.

    Parameters
    ----------
    make : callable
        Returns the object and the items for `agree`; or raises `UsageError`.
    comm, verb, note
        As for `agree`.

    Returns
    -------
    made, notes
        The object of this rank, and the notes of all ranks.
    """
    try:
        made, items = make()
    except Exception as error:
        agree(comm, verb, [], error, note)
        raise
    return made, agree(comm, verb, items, None, note)


def _message(comm: Communicator, verb: str, by_rank: list[str], advice: str) -> str:
    """Return the text of a `SpecMismatch`: the error or argument of each rank, then advice."""
    hidden = len(by_rank) - _SHOWN
    more = [f"{hidden} more ranks"] if hidden > 0 else []
    shown = "; ".join([*by_rank[:_SHOWN], *more])
    return f"rank {comm.rank} of {comm.size}: the ranks disagree at {verb}: {shown}; {advice}"


def from_rank(comm: Communicator, values: Sequence[Array], root: int = 0) -> list[Array]:
    """Return copies of one rank's values, on every rank; collective.

    The shapes and dtypes of `values` are the same on all ranks.
    """
    sizes = [-(-value.nbytes // ALIGNMENT) * ALIGNMENT for value in values]
    blob = comm.allocate(sum(sizes))
    copies, start = [], 0
    for value, size in zip(values, sizes, strict=True):
        copy = blob[start : start + value.nbytes].view(value.dtype)
        if comm.rank == root:
            comm.kernels.pack(value, copy)
        copies.append(copy.reshape(value.shape))
        start += size
    work = comm.broadcast(blob, root)
    work.label = f"rank {root}'s values"
    work.wait()
    return copies
