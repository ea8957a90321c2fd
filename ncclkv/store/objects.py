"""Objects of Python: small objects, pickled, from the root to all ranks or from all ranks to all.

Ranks of a job trust each other, so they unpickle what they receive (docs/reliability.md).  No
pickle is ever read from a file.

The objects travel by the control messages of the hosts, whose digests find ranks that make other
calls.
"""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

from ncclkv.arguments import check_count
from ncclkv.comm.diagnosis.call_ring import LoggedKeys
from ncclkv.errors import UsageError
from ncclkv.store.context import Component, Context
from ncclkv.table import contract

MAX_BYTES = 16 * 1024 * 1024
"""Limit of a pickled object: each rank holds the objects of all ranks, and sends them whole."""


class Refusal(NamedTuple):
    """The reason why a rank cannot send its object, in place of the object.

    All ranks raise it: a rank that raised alone would leave the others waiting.
    """

    text: str


class Objects(Component):
    """Collectives of Python's objects, over the control messages of the hosts."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._sending = context.session.verb("broadcast_object")
        self._gathering = context.session.verb("allgather_object")

    def send_from_root(self, obj: Any, root: int) -> Any:
        """Return a copy of the root's object, on every rank; collective."""
        verb = "broadcast_object"
        with self._sending:
            with self._session.checks:
                self._check_root(root)
            # Not among the checks: Ctrl-C in a long pickle would leave this rank a call behind.
            message = self._pickled(verb, obj) if self._comm.rank == root else None
            shown = f"root={int(root)}"
            self._calls.record(verb, logged=LoggedKeys(contract.text_code(shown)), arguments=shown)
            sent = self._comm.control.broadcast(message, int(root), f"{verb}({shown})")
            with self._session.checks:
                return self._unpickled(verb, int(root), sent)

    def gather_from_ranks(self, obj: Any) -> list[Any]:
        """Return copies of all ranks' objects, in rank order; collective."""
        verb = "allgather_object"
        with self._gathering:
            message = self._pickled(verb, obj)  # not among the checks, as above
            self._calls.record(verb)
            sent = self._comm.control.allgather(message, f"{verb}()")
            with self._session.checks:  # the exchange is complete: an exception breaks nothing
                return [self._unpickled(verb, rank, each) for rank, each in enumerate(sent)]

    def _check_root(self, root: Any) -> None:
        """Refuse a root that is no rank."""
        size = self._comm.size
        advice = f" from 0 to {size - 1}"
        if check_count("broadcast_object: root", root, 0, advice) >= size:
            raise UsageError(f"broadcast_object: root={root} is not a rank; give an int{advice}")

    def _pickled(self, verb: str, obj: Any) -> bytes | Refusal:
        """Return a pickle of an object, or the reason why it is not sent."""
        try:
            data = pickle.dumps(obj)
        except Exception as error:
            return Refusal(
                f"{verb}: the object of rank {self._comm.rank}, a {type(obj).__name__}, cannot be "
                f"pickled: {type(error).__name__}: {error}; give plain data, such as numbers, "
                f"texts, lists and dicts"
            )
        if len(data) > MAX_BYTES:
            return Refusal(
                f"{verb}: the object of rank {self._comm.rank}, a {type(obj).__name__}, has "
                f"{len(data):,} bytes when pickled, and {MAX_BYTES:,} are allowed; give arrays to "
                f"allgather, or to broadcast with a key; a view of a tensor is pickled with all of "
                f"the tensor: give its .clone()"
            )
        return data

    def _unpickled(self, verb: str, rank: int, sent: bytes | Refusal) -> Any:
        """Return a copy of the object that a rank has sent, or raise its refusal."""
        if isinstance(sent, Refusal):
            raise UsageError(sent.text)
        try:
            return pickle.loads(sent)
        except Exception as error:
            missing = isinstance(error, (AttributeError, ImportError))
            advice = "; define its class in a module that all ranks import" * missing
            raise UsageError(
                f"{verb}: the object of rank {rank} cannot be unpickled here: "
                f"{type(error).__name__}: {error}{advice}"
            ) from error
