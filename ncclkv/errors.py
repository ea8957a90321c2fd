"""The error tree.

::

    KVStoreError
      UsageError     the call is wrong here; nothing was sent, the store is as before
        KeyNotInitialized(KeyError)  KeyAlreadyInitialized  KeyTypeMismatch(TypeError)
        ShapeMismatch(ValueError)  DTypeMismatch(TypeError)  UnknownArgument(TypeError)
        NotSupported(NotImplementedError)  OutOfMemory(MemoryError)
      ContractError  ranks disagree; the store is broken on every rank
        OrderMismatch  SpecMismatch  Divergence
      CommError      the transport is in an unknown state; the store is broken
        CommTimeout(TimeoutError)  RankLost  RankDied(RankLost)  CommAborted
      NonFinite      a gradient holds NaN or infinity
      UpdaterError   the updater raised on the root, and this rank is another
      CheckpointError
      LaunchError    the job was started wrongly; the text has the command that mends it

After a `UsageError` the store answers as it did before the call.  After a `ContractError` or a
`CommError` every later call but ``close`` raises the same error again.
"""

from __future__ import annotations


class KVStoreError(Exception):
    """Base of every error that ncclkv raises on purpose."""


def again(error: KVStoreError) -> KVStoreError:
    """Return the same error, to keep or to raise once more, without the frames that it passed.

    These frames would keep alive all that they refer to, such as the store.
    """
    return type(error)(*error.args)


class UsageError(KVStoreError):
    """The call is wrong here; nothing was sent and the store is unchanged."""


class KeyNotInitialized(UsageError, KeyError):
    """A key was used before ``init``."""

    # KeyError shows the repr of its argument, which would quote the whole sentence.
    __str__ = Exception.__str__


class KeyAlreadyInitialized(UsageError):
    """``init`` of a key that has a value; ``reset`` or ``broadcast`` replaces it."""


class KeyTypeMismatch(UsageError, TypeError):
    """A key is not an int or a str, or a store with keys of one kind was given the other."""


class ShapeMismatch(UsageError, ValueError):
    """An array's shape is not the key's."""


class DTypeMismatch(UsageError, TypeError):
    """An array's dtype is not the key's, or is one that no store can hold."""


class UnknownArgument(UsageError, TypeError):
    """A keyword argument that the call does not have."""


class NotSupported(UsageError, NotImplementedError):
    """A combination that this store does not offer."""


class OutOfMemory(UsageError, MemoryError):
    """There is no memory for new keys, on a rank's machine, container or GPU, or for a push."""


class ContractError(KVStoreError):
    """The ranks of a store disagree about what they are doing."""


class OrderMismatch(ContractError):
    """Ranks issued different operations, or the same ones in a different order."""


class SpecMismatch(ContractError):
    """Ranks disagree about a key's name, shape, dtype or op, or about a store's options."""


class Divergence(ContractError):
    """Replicas that must be equal are not."""


class CommError(KVStoreError):
    """A collective did not complete; the transport is in an unknown state."""


class CommTimeout(CommError, TimeoutError):
    """A wait passed its deadline."""


class RankLost(CommError):
    """A rank left the job, or the store, while another waited for it."""


class RankDied(RankLost):
    """A rank's process ended without a word, while another waited for it."""


class CommAborted(CommError):
    """The communicator was aborted, or MPI reported an error of its own."""


class NonFinite(KVStoreError):
    """A gradient holds NaN or infinity."""


class UpdaterError(KVStoreError):
    """The updater raised on the rank that it runs on; this one goes on with that rank's values."""


class CheckpointError(KVStoreError):
    """A checkpoint cannot be written or read."""


class LaunchError(KVStoreError):
    """The job was started wrongly; the message has the command that mends it."""


def annotate(error: BaseException, text: str) -> None:
    """Add a line to an exception's text, whatever the version of Python."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        error.args = (f"{error} [{text}]", *error.args[1:])
