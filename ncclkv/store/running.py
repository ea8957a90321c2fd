"""Running: the verb that a thread executes now, during which no other verb may be called.

A signal handler or a destructor may run at any moment of a verb.  A verb also calls functions of
the program: schedules, instruments, handlers of log records, methods of arrays and keys, and an
updater's methods for checkpoints.

Only an updater itself, and its ``dispose``, may call other stores.  All ranks call these functions
in the same order under ``update_on="every_rank"``.  Under another placement the calls of ranks may
differ, which raises `OrderMismatch`.
"""

from __future__ import annotations

from sys import _getframe
from types import FrameType
from weakref import ref

from ncclkv import concurrency
from ncclkv.comm import callbacks
from ncclkv.comm.diagnosis import dump
from ncclkv.errors import CommError, ContractError, UsageError

_PACKAGE = __name__.rpartition(".")[0]
_thread = concurrency.local()


class Running:
    """The verb that a thread executes now, on any of its stores.

    All stores of a thread share the progress of collectives.

    Attributes
    ----------
    verb : str
        The name of the verb; empty between verbs, and while an updater runs.
    """

    def __init__(self) -> None:
        self.verb = ""
        self._refused: ref[UsageError] | None = None

    def check(self, name: str) -> None:
        """Refuse the verb `name` inside another verb, and inside a callback of a communicator."""
        if not self.verb:
            callbacks.refuse(name)
            return
        if not _is_interrupted(_getframe()):
            # An exception left a verb before the end of its `with` block had begun.
            self.verb = ""
            return
        error = UsageError(
            f"{name} was called inside {self.verb}, by a signal handler, a destructor or a "
            f"function that {self.verb} calls; set a flag there, and call {name} after "
            f"{self.verb} has returned"
        )
        self._refused = ref(error)
        raise error

    def refused(self, error: BaseException) -> bool:
        """Return whether `error` is the error of the last refused call, which left its handler."""
        return self._refused is not None and self._refused() is error


class Creating:
    """The ``with`` block that creates a store; it is refused inside a verb."""

    def __enter__(self) -> None:
        running().check("create")
        running().verb = "create"

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        running().verb = ""
        if isinstance(error, (ContractError, CommError)):
            dump.write(error, None)


def running() -> Running:
    """Return the record of the calling thread."""
    try:
        found: Running = _thread.running
    except AttributeError:
        found = _thread.running = Running()
    return found


def _is_interrupted(frame: FrameType | None) -> bool:
    """Return whether a verb is on the stack below the call to which `frame` belongs."""
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    while frame is not None and not _is_ours(frame):
        frame = frame.f_back
    return frame is not None


def _is_ours(frame: FrameType) -> bool:
    """Return whether a frame is of a module of this package's stores."""
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.startswith(_PACKAGE)
