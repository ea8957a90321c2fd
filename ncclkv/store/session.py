"""Session: permission to call a store, by one thread of one process, until it is closed or broken.

A thread runs one verb at a time; `ncclkv.store.running` refuses a second verb in the middle of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from os import getpid
from threading import current_thread, get_ident
from time import perf_counter
from typing import NoReturn

from ncclkv.comm.base import Communicator
from ncclkv.comm.diagnosis import dump
from ncclkv.comm.host import finalize
from ncclkv.engine.events import Events
from ncclkv.engine.updates import Updates
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

IN_GROUP = "a group"
IN_CAPTURE = "a capture"
IN_UNEVEN = "an uneven block"
BLOCKS = (IN_GROUP, IN_CAPTURE, IN_UNEVEN)
"""Blocks that may enclose a verb, as `Session.block` names them."""

_IN_UPDATER = "an updater"


class Checks:
    """A ``with`` block of a verb before its call is logged.

    Whatever is raised in the block, by an array's own code or by Ctrl-C, cannot put this rank
    behind the others.  So the exception breaks nothing.
    """

    __slots__ = ("_raised",)

    def __init__(self) -> None:
        self._raised: BaseException | None = None

    def __enter__(self) -> None:
        self._raised = None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._raised = error

    def failed(self, error: BaseException) -> None:
        """Note an exception as the block does, for a ``try``, which is cheaper than the block."""
        self._raised = error

    def take(self) -> BaseException | None:
        """Return what was raised in the block, and forget it."""
        raised, self._raised = self._raised, None
        return raised


class Session:
    """Decides whether a verb may run, and notes the failure that breaks the store.

    Attributes
    ----------
    comm : Communicator
    events : Events
    closed : bool
    failure : ContractError or CommError or None
        The error that broke the store; every later call raises it again.
    block : str
        The block that encloses the program's calls now, of `BLOCKS`, or an updater; else empty.
    recording : bool
        Whether calls are captured, and not done.
    running : Running
        The verb that the store's thread is in.
    checks : Checks
        For what a verb does before its call is logged.
    owner : tuple of int
        The process and the thread that created the store.
    """

    def __init__(self, name: str, comm: Communicator, events: Events, updates: Updates) -> None:
        self.closed = False
        self.failure: ContractError | CommError | None = None
        self.block = ""
        self.recording = False
        self.running = running()
        self.checks = Checks()
        self.comm = comm
        self.events = events
        self._name = name
        self._updates = updates
        self._alone = comm.size == 1
        self._prefix = f"rank {comm.rank} of {comm.size}: "
        self.owner = getpid(), get_ident()

    def verb(self, name: str, *, allowed_inside: Collection[str] = ()) -> Verb:
        """Return the ``with`` block that a verb runs in.

        Parameters
        ----------
        name : str
        allowed_inside : collection of str
            Those of `BLOCKS` that may enclose the verb.
        """
        return Verb(self, name, allowed_inside)

    @contextmanager
    def enclosing(self, block: str) -> Iterator[None]:
        """Name the block that encloses the program's calls."""
        outer, self.block = self.block, block
        try:
            yield
        finally:
            self.block = outer

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Refuse this store's verbs, but no other's, while the program's updater runs."""
        verb, self.running.verb = self.running.verb, ""
        try:
            with self.enclosing(_IN_UPDATER):
                yield
        finally:
            self.running.verb = verb

    # Failures

    def note(self, name: str, error: BaseException) -> None:
        """Decide whether an exception that a verb raised breaks the store.

        Raises
        ------
        CommAborted
            In the place of an error of CUDA's.
        UsageError
            In the place of CUDA's refusal of a call inside a capture of the program's own.
        """
        harmless = self.checks.take() is error
        if isinstance(error, (ContractError, CommError)):
            self.fail(error)
            finalize.failed(error)
        elif isinstance(error, UsageError):
            self.prefix_rank(error)
            amid = isinstance(error, OutOfMemory) and not self.recording
            if (amid or self.running.refused(error)) and not harmless:
                self.mark_interrupted(name, error)
        elif not (isinstance(error, KVStoreError) or self.recording or harmless):
            reported = self.comm.reported(error, name)
            if isinstance(reported, CommError):
                self.note(name, reported)
            else:
                self.mark_interrupted(name, error)
            if reported is not None:
                raise reported from error

    def mark_interrupted(self, name: str, error: BaseException) -> None:
        """Break the store: other ranks may have made a call that this rank left in the middle.

        A store of one rank breaks if an optimizer has updated some keys of a push and not others.
        Ctrl-C, an exception of a signal handler and a lack of memory have this effect.
        """
        if self.failure is not None or (self._alone and not self._updates.torn):
            return
        effect = (
            "some keys may be updated and others not"
            if self._alone
            else "this rank may be a call behind the others"
        )
        self.fail(
            CommAborted(
                f"{self._prefix}{name} was interrupted by {type(error).__name__}, so {effect}; "
                f"close the store and make a new one"
            )
        )

    def fail(self, error: ContractError | CommError) -> None:
        """Break the store, and write this rank's calls to the file that ``NCCLKV_DUMP`` names."""
        self.failure = error
        if not self._alone:
            dump.write_of(self.comm, error)

    def prefix_rank(self, error: UsageError) -> None:
        """Put this rank before the text of a `UsageError`; other errors name it themselves."""
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
        """Refuse a call on a closed store, and a call from another thread or process."""
        if self.closed or (getpid(), get_ident()) != self.owner:
            self.refuse_call(name)

    def refuse_call(self, name: str) -> NoReturn:
        """Refuse a call on a closed store, or a call that is not its owner's."""
        if self.closed:
            raise UsageError(f"{name}: the store {self._name!r} is closed; create a new one")
        created_in, process = self.owner[0], getpid()
        if process != created_in:
            raise UsageError(
                f"{name}: the store {self._name!r} was created in process {created_in}, and "
                f"this is its fork {process}; create stores after forking"
            )
        raise UsageError(
            f"{name} was called from thread {current_thread().name!r}, which did not "
            f"create the store {self._name!r}; a store belongs to one thread: create another"
        )

    def refuse(self, verb: str, instead: str) -> NoReturn:
        """Refuse a verb of MXNet's that this version does not have."""
        with self.prefixing_rank():
            raise NotSupported(f"{verb} is not in this version; {instead}")

    def refuse_pickling(self) -> NoReturn:
        """Refuse to pickle or copy the store, which is memory and connections of this process."""
        raise UsageError(
            f"{self._prefix}the store {self._name!r} cannot be pickled or copied: its connections "
            f"to other ranks belong to this process; create a store in each process instead"
        )


class Verb:
    """The ``with`` block that a verb runs in; one serves for every call of the verb.

    A class, since entering and leaving a generator takes several times as long.
    """

    __slots__ = ("_allowed_inside", "_begin", "_events", "_name", "_running", "_session")

    def __init__(self, session: Session, name: str, allowed_inside: Collection[str]) -> None:
        self._session = session
        self._events = session.events
        self._begin: float | None = None
        self._running = session.running
        self._name = name
        self._allowed_inside = allowed_inside

    def __enter__(self) -> None:
        session, name = self._session, self._name
        try:
            if session.closed or (getpid(), get_ident()) != session.owner:
                session.refuse_call(name)
            if self._running.verb:
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
            if session.failure is None:  # found while no verb was under way
                session.fail(error)
                finalize.failed(error)
            raise
        self._begin = perf_counter() if "verb" in self._events.heard else None
        # Last: an exception that a signal handler raises in here must not leave the name set.
        self._running.verb = name

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is not None:
                self._session.note(self._name, error)
        finally:
            if self._begin is not None:
                self._events.emit("verb", self._name, perf_counter() - self._begin)
            self._running.verb = ""
