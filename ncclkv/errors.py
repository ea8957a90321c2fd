"""Errors that a store raises, as a tree of classes.

::

    KVStoreError
      UsageError     the call is wrong; nothing was sent, the store is unchanged
        KeyNotInitialized(KeyError)  KeyAlreadyInitialized  KeyTypeMismatch(TypeError)
        ShapeMismatch(ValueError)  DTypeMismatch(TypeError)  UnknownArgument(TypeError)
        ReadOnlyAttribute(AttributeError)
        NotSupported(NotImplementedError)  OutOfMemory(MemoryError)
      ContractError  ranks disagree; the store is broken on every rank
        OrderMismatch  SpecMismatch  Divergence
      CommError      the transport is in an unknown state; the store is broken
        CommTimeout(TimeoutError)  RankLost  RankDied(RankLost)  CommAborted
      NonFinite      a gradient holds NaN or infinity
      UpdaterError   the updater raised on the root, which is another rank
      CheckpointError
      LaunchError    the job was started wrongly; the text has a command that corrects it

After a `UsageError` the store is unchanged.  After a `ContractError` or a
`CommError` every later call but ``close`` raises the same error again.

A program that acts on an error reads the attributes of `KVStoreError` in place of the text.
"""

from __future__ import annotations

from collections import abc
from contextlib import contextmanager

__all__ = [
    "CheckpointError",
    "CommAborted",
    "CommError",
    "CommTimeout",
    "ContractError",
    "DTypeMismatch",
    "Divergence",
    "KVStoreError",
    "KeyAlreadyInitialized",
    "KeyNotInitialized",
    "KeyTypeMismatch",
    "LaunchError",
    "NonFinite",
    "NotSupported",
    "OrderMismatch",
    "OutOfMemory",
    "RankDied",
    "RankLost",
    "ReadOnlyAttribute",
    "ShapeMismatch",
    "SpecMismatch",
    "UnknownArgument",
    "UpdaterError",
    "UsageError",
]


class KVStoreError(Exception):
    """Base of every error that ncclkv raises on purpose.

    Its traceback shows the program's frames alone; all frames with ``NCCLKV_TRACEBACK=full``.

    Parameters
    ----------
    *args : object
        The text, as of every exception.
    key : int or str, optional
        `key`.
    ranks : iterable of int, optional
        `ranks`, in any order.

    Attributes
    ----------
    key : int or str or None
        The key that the error is about; None if it is about no key, or about several.
    ranks : tuple of int
        The ranks that the error is about, in order: those waited for, lost, or with another call
        or other values than this rank.  Empty if it is about this rank's call alone, and for a
        timeout of NCCL, which does not name the missing rank.
    call : str
        The store's verb that raised, such as ``"push"``; empty outside of verbs.

    Examples
    --------
    >>> import numpy as np
    >>> import ncclkv
    >>> with ncclkv.create("local") as kv:
    ...     kv.init("w", np.zeros(2))
    ...     try:
    ...         kv.push("w", np.zeros(3))
    ...     except KVStoreError as error:
    ...         print(error.key, error.ranks, error.call)
    w () push
    """

    def __init__(
        self, *args: object, key: int | str | None = None, ranks: abc.Iterable[int] = ()
    ) -> None:
        super().__init__(*args)
        self.key = key
        self.ranks = tuple(sorted(ranks))
        self.call = ""


def again(error: KVStoreError) -> KVStoreError:
    """Return an equal error without a traceback and a call, to be kept or raised again.

    The frames of a traceback would keep the objects alive to which they refer, such as the store.
    """
    return type(error)(*error.args, key=error.key, ranks=error.ranks)


@contextmanager
def about(key: int | str) -> abc.Iterator[None]:
    """Set the `key` of a `KVStoreError` that the block raises, if it has none."""
    try:
        yield
    except KVStoreError as error:
        error.key = key if error.key is None else error.key
        raise


class UsageError(KVStoreError):
    """The call is wrong; nothing was sent and the store is unchanged."""


class KeyNotInitialized(UsageError, KeyError):
    """A key was used before ``init``."""

    # KeyError shows the repr of its argument, which would quote the whole sentence.
    __str__ = Exception.__str__


class KeyAlreadyInitialized(UsageError):
    """``init`` of a key that has a value; ``reset`` or ``broadcast`` replaces it."""


class KeyTypeMismatch(UsageError, TypeError):
    """A key is not an int or str, or its type is not the type of the store's other keys."""


class ShapeMismatch(UsageError, ValueError):
    """An array's shape differs from the key's."""


class DTypeMismatch(UsageError, TypeError):
    """An array's dtype differs from the key's, or no store can hold it."""


class UnknownArgument(UsageError, TypeError):
    """The call has no argument of this name."""


class ReadOnlyAttribute(UsageError, AttributeError):
    """An attribute that cannot be assigned, such as a hyperparameter on which states depend."""


class NotSupported(UsageError, NotImplementedError):
    """The store does not offer this combination."""


class OutOfMemory(UsageError, MemoryError):
    """A rank's machine, container or GPU has no memory for new keys or for a push."""


class ContractError(KVStoreError):
    """Ranks of a store make calls that contradict each other."""


class OrderMismatch(ContractError):
    """Ranks made different calls, or equal calls in different order."""


class SpecMismatch(ContractError):
    """Ranks disagree about a key's name, shape, dtype or op, or about a store's options."""


class Divergence(ContractError):
    """Ranks hold different bits of a value that must be equal on all."""


class CommError(KVStoreError):
    """A collective did not complete; the transport is in an unknown state."""


class CommTimeout(CommError, TimeoutError):
    """A wait passed its deadline."""


class RankLost(CommError):
    """A rank left the job, or the store, while another waited for it."""


class RankDied(RankLost):
    """A rank's process ended without a farewell, while another rank waited for it."""


class CommAborted(CommError):
    """The communicator was aborted, or MPI reported an error."""


class NonFinite(KVStoreError):
    """A gradient holds NaN or infinity."""


class UpdaterError(KVStoreError):
    """The updater raised on the root; the other ranks continue with the root's values."""


class CheckpointError(KVStoreError):
    """A checkpoint cannot be written or read."""


class LaunchError(KVStoreError):
    """The job was started wrongly; the message has a command that corrects it.

    Attributes
    ----------
    on_every_rank : bool
        True if every rank of the job raises it, so that rank 0 alone prints it.
    """

    on_every_rank = False


def annotate(error: BaseException, text: str) -> None:
    """Add a line to an exception's text, in every version of Python."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        error.args = (f"{error} [{text}]", *error.args[1:])
