"""Session: permission to call a store, by one thread of one process, until it is closed or broken.

A thread runs one verb at a time; `ncclkv.store.running` refuses a second verb in the middle of it.

A `ContractError` or `CommError` breaks the store: later calls raise it again, and ``close`` does
not wait.  Ctrl-C, or any other foreign exception in a verb, also breaks a store of several ranks.
The rank may then be a call behind the others.  `OutOfMemory` after the checks of a call breaks the
store, too.  Exceptions in the checks break nothing.  A store that is dropped without ``close``
keeps its collectives and their memory until they are complete.

A rank sends a farewell with its reason at three events.  These are an exception that leaves ``with
create(...)``, the ``close`` of a broken store, and the end of a process with an open store.  A rank
that waits for the sender raises `RankLost`.  ``close`` itself counts a rank that has left as
arrived.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NoReturn

from ncclkv import concurrency
from ncclkv.comm import callbacks
from ncclkv.comm.base import Communicator
from ncclkv.comm.diagnosis import dump, farewells
from ncclkv.engine.events import Events
from ncclkv.engine.rules_in_force import RulesInForce
from ncclkv.errors import (
    CommAborted,
    CommError,
    ContractError,
    KVStoreError,
    NotSupported,
    OutOfMemory,
    UsageError,
    again,
)
from ncclkv.store.running import running
from ncclkv.system.this_process import this_process

IN_GROUP = "a group"
IN_CAPTURE = "a capture"
IN_UNEVEN = "an uneven block"
IN_OVERLAP = "an overlap block"
BLOCKS = (IN_GROUP, IN_CAPTURE, IN_UNEVEN)
"""Blocks that may enclose the verbs of one thread, as `Session.block` names them."""

_IN_UPDATER = "an updater"

_IN_OTHER_THREADS = {
    **dict.fromkeys(("push", "grad_view"), ", or push inside kv.overlap()"),
    "overlap": ", or open kv.overlap() in the thread that created this one",
}
"""Advice for the verbs that overlap blocks allow to other threads, and for the block itself."""


class Checks:
    """The ``with`` block around the part of a verb before its call is logged.

    An exception in the block, from an array's code or by Ctrl-C, cannot put this rank a call behind
    the other ranks.  So the exception breaks nothing.

    Attributes
    ----------
    raised : BaseException or None
        The exception of the block; also set after a ``try``, which costs less time than the block.
    """

    def __init__(self) -> None:
        self.raised: BaseException | None = None

    def __enter__(self) -> None:
        self.raised = None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.raised = error


class Session:
    """Decides whether a verb may run, and records the failure that breaks the store.

    Attributes
    ----------
    comm : Communicator
    events : Events
    closed : bool
    failure : ContractError or CommError or None
        The error that broke the store; every later call raises it again.
    block : str
        The block that encloses the program's calls now: of `BLOCKS`, an overlap block, an updater;
        else empty.
    recording : bool
        Whether calls are captured, not executed.
    running : Running
        The verb that the store's thread is in.
    checks : Checks
        The block of a verb before its call is logged.
    owner : tuple of int
        The process and the thread that created the store.
    deputy : tuple of int or None
        The process and the thread that may call the store for its owner, which waits meanwhile.
    """

    def __init__(
        self, name: str, comm: Communicator, events: Events, updates: RulesInForce
    ) -> None:
        self.closed = False
        self.failure: ContractError | CommError | None = None
        self.block = ""
        self.recording = False
        self.running = running()
        self.checks = Checks()
        self.comm = comm
        self.events = events
        self._name = name
        self.updates = updates
        self._alone = comm.size == 1
        self._prefix = f"rank {comm.rank} of {comm.size}: "
        self.owner = this_process.pid, concurrency.get_ident()
        self.deputy: tuple[int, int] | None = None

    def verb(
        self, name: str, *, allowed_inside: Collection[str] = (), raises: bool = False
    ) -> Verb:
        """Return the ``with`` block that a verb runs in.

        Parameters
        ----------
        name : str
        allowed_inside : collection of str
            Members of `BLOCKS` that may enclose the verb.
        raises : bool
            Whether the end of the verb raises the pending exception of an updater.
        """
        return Verb(self, name, allowed_inside, self.updates if raises else None)

    def raise_updater_error(self) -> None:
        """Raise the pending exception of an updater, if there is one.

        Called after a verb's end, because the exception is the program's and breaks nothing.
        """
        if (error := self.updates.pop_error()) is not None:
            raise error

    @contextmanager
    def enclosing(self, block: str) -> Iterator[None]:
        """Name the block that encloses the program's calls."""
        outer = self.block, self.recording
        self.block, self.recording = block, self.recording or block == IN_CAPTURE
        try:
            yield
        finally:
            self.block, self.recording = outer

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Refuse this store's verbs, but no other's, while the program's updater runs."""
        verb, self.running.verb = self.running.verb, ""
        try:
            with self.enclosing(_IN_UPDATER):
                yield
        finally:
            self.running.verb = verb

    @contextmanager
    def deputized(self) -> Iterator[None]:
        """Let the calling thread call the store for its owner, which must wait meanwhile."""
        before, self.deputy = self.deputy, (this_process.pid, concurrency.get_ident())
        try:
            with self.comm.lend():
                yield
        finally:
            self.deputy = before

    # Failures

    def record_failure(self, name: str, error: BaseException) -> None:
        """Decide whether an exception that a verb raised breaks the store.

        Raises
        ------
        CommAborted
            In place of an error of CUDA.
        UsageError
            In place of CUDA's refusal of a call inside a capture by the program.
        """
        harmless, self.checks.raised = self.checks.raised is error, None
        if isinstance(error, KVStoreError):
            error.call = error.call or name
        if isinstance(error, (ContractError, CommError)):
            self.fail(error)
            farewells.failed(error)
        elif isinstance(error, UsageError):
            self.prefix_rank(error)
            interrupts = isinstance(error, OutOfMemory) and not self.recording
            if (interrupts or self.running.refused(error)) and not harmless:
                self.mark_interrupted(name, error)
        elif not (isinstance(error, KVStoreError) or self.recording or harmless):
            reported = self.comm.reported(error, name)
            if isinstance(reported, CommError):
                self.record_failure(name, reported)
            else:
                self.mark_interrupted(name, error)
            if reported is not None:
                raise reported from error

    def mark_interrupted(self, name: str, error: BaseException) -> None:
        """Break the store: other ranks may have made a call that this rank left in the middle.

        A store of one rank breaks if an optimizer has updated some keys of a push and not others.
        Ctrl-C, an exception of a signal handler and a MemoryError have this effect.
        """
        if self.failure is not None or (self._alone and not self.updates.torn):
            return
        effects = ["some keys may be updated and others not"] if self.updates.torn else []
        if not self._alone:
            effects.append("this rank may be a call behind the other ranks")
        self.fail(
            CommAborted(
                f"{self._prefix}{name} was interrupted by {type(error).__name__}, so "
                f"{', and '.join(effects)}; "
                f"close the store and make a new one"
            )
        )

    def fail(self, error: ContractError | CommError) -> None:
        """Break the store, and write this rank's calls to the file that ``NCCLKV_DUMP`` names."""
        self.failure = error
        if self.events.listeners:
            self.events.emit("failed", f"{type(error).__name__}: {error}")
        if not self._alone:
            with self.comm.lock:
                dump.write(error, self.comm.calls, self.comm.name)

    def prefix_rank(self, error: UsageError) -> None:
        """Put this rank before the text of a `UsageError`; other errors already name the rank."""
        text = str(error)
        if not text.startswith(self._prefix):  # an error that passed an updater has the prefix
            error.args = (self._prefix + text,)

    @contextmanager
    def prefixing_rank(self) -> Iterator[None]:
        """Put this rank before the text of a `UsageError` that the block raises."""
        try:
            yield
        except UsageError as error:
            self.prefix_rank(error)
            raise

    # Refusals

    def check(self, name: str) -> None:
        """Raise `UsageError` if the store is closed, or belongs to another thread or process."""
        if self.closed or (this_process.pid, concurrency.get_ident()) != self.owner:
            self.check_other(name)

    def check_other(self, name: str) -> None:
        """Raise `UsageError` if the store is closed, or unless the owner's deputy calls."""
        if self.closed:
            raise UsageError(f"{name}: the store {self._name!r} is closed; create a new one")
        created_in, process = self.owner[0], this_process.pid
        if self.deputy == (process, concurrency.get_ident()):
            return
        if process != created_in:
            raise UsageError(
                f"{name}: the store {self._name!r} was created in process {created_in}, and "
                f"process {process} is a fork of it; create stores after the fork"
            )
        raise UsageError(
            f"{name} was called from thread {concurrency.current_thread().name!r}, which did not "
            f"create the store {self._name!r}; a store belongs to one thread: create another "
            f"store{_IN_OTHER_THREADS.get(name, '')}"
        )

    def refuse(self, verb: str, instead: str) -> NoReturn:
        """Refuse a verb of MXNet's that this version does not have."""
        with self.prefixing_rank():
            raise NotSupported(f"{verb} is not in this version; {instead}")

    def refuse_pickling(self) -> NoReturn:
        """Refuse to pickle or copy the store, which is memory and connections of this process."""
        raise UsageError(
            f"{self._prefix}the store {self._name!r} cannot be pickled or copied: its connections "
            f"to other ranks belong to this process; create a store in each process"
        )


class Verb:
    """The ``with`` block that a verb runs in; the same object serves all calls of the verb.

    A generator would take several times as long to enter and leave.

    Parameters
    ----------
    session : Session
    name : str
    allowed_inside : collection of str
        Blocks that may enclose the verb.
    updates : RulesInForce, optional
        Raises the pending exception of an updater at the end of the verb.
    owner : tuple of int, optional
        The process, and the calling thread, in place of those that created the store.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        allowed_inside: Collection[str],
        updates: RulesInForce | None = None,
        owner: tuple[int, int] | None = None,
    ) -> None:
        self._session = session
        self._owner = owner or session.owner
        self._events = session.events
        self._begin: float | None = None
        self._running = running() if owner else session.running
        self._name = name
        self._allowed_inside = allowed_inside
        self._updates = updates

    def __enter__(self) -> None:
        session, name = self._session, self._name
        try:
            if session.closed or (this_process.pid, concurrency.get_ident()) != self._owner:
                session.check_other(name)
            if self._running.verb or callbacks.inside:
                self._running.check(name)
            if session.block and session.block not in self._allowed_inside:
                raise UsageError(f"{name} was called inside {session.block}; call it after its end")
            if session.failure is not None:
                raise again(session.failure)
            if not session.comm.blocks:
                session.comm.sync_stream()
        except UsageError as error:
            session.prefix_rank(error)
            raise
        except (ContractError, CommError) as error:
            if session.failure is None:  # found between verbs
                session.fail(error)
                farewells.failed(error)
            raise
        self._begin = self._begin_observed() if self._events.listeners else None
        # Last, because an exception of a signal handler in this method must not leave the name set.
        self._running.verb = name

    def _begin_observed(self) -> float:
        """Emit the begin of the verb, and return its time; instruments may call no verb."""
        self._running.verb = self._name
        try:
            return self._events.begin(self._name)
        finally:
            self._running.verb = ""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is not None:
                self._session.record_failure(self._name, error)
        finally:
            if self._begin is not None:
                self._events.end(self._name, self._begin)
            self._running.verb = ""
        if error is None and self._updates is not None and self._updates.error is not None:
            self._session.raise_updater_error()
