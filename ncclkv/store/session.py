"""Permission to call a store: one thread, one process, until it is closed or broken.

A verb is entered by one call at a time, and `running` refuses another in the middle of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from os import getpid
from threading import current_thread, get_ident
from typing import NoReturn

from ncclkv.comm.base import Communicator
from ncclkv.comm.diagnosis import dump
from ncclkv.comm.host import finalize
from ncclkv.errors import (
    CommAborted,
    CommError,
    ContractError,
    KVStoreError,
    OutOfMemory,
    UsageError,
    again,
)
from ncclkv.store.running import running

IN_GROUP = "a group"
IN_CAPTURE = "a capture"
IN_UNEVEN = "an uneven block"
BLOCKS = (IN_GROUP, IN_CAPTURE, IN_UNEVEN)
"""What a verb may be called inside of, and `Session.inside` may be; it says more in an updater."""


class Checks:
    """A ``with`` block of a verb before its call is noted.

    What is raised there, by an array's own code or by Ctrl-C, cannot put this rank behind the
    others, so it breaks nothing.
    """

    __slots__ = ("_raised",)

    def __init__(self) -> None:
        self._raised: BaseException | None = None

    def __enter__(self) -> None:
        self._raised = None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._raised = error

    def failed(self, error: BaseException) -> None:
        """Note what was raised, where a ``try`` takes the place of the block: it costs nothing."""
        self._raised = error

    def take(self) -> BaseException | None:
        """Return what was raised in the block, once."""
        raised, self._raised = self._raised, None
        return raised


class Session:
    """The state that every verb looks at first.

    Attributes
    ----------
    comm : Communicator
    closed : bool
    failure : ContractError or CommError or None
        What broke the store; every later call raises it again.
    inside : str
        What the store is in the middle of, in words: a group, an updater; else empty.
    recording : bool
        Whether what is called is captured, and not done.
    running : Running
        Of the thread that the store belongs to.
    checks : Checks
        For what a verb does before its call is noted.
    """

    def __init__(self, name: str, comm: Communicator) -> None:
        self.closed = False
        self.failure: ContractError | CommError | None = None
        self.inside = ""
        self.recording = False
        self.running = running()
        self.checks = Checks()
        self._name = name
        self._alone = comm.size == 1
        self.comm = comm
        self._where = f"rank {comm.rank} of {comm.size}: "
        self._thread = get_ident()
        self._process = getpid()

    def verb(self, name: str, *, allowed_inside: Collection[str] = ()) -> Verb:
        """What a verb runs in, a ``with`` block, if it may; it notes what breaks the store."""
        return Verb(self, name, allowed_inside)

    def note(self, name: str, error: BaseException) -> None:
        """Look at what a verb raised: it may break the store.

        Raises
        ------
        CommAborted
            In the place of an error of CUDA's.
        UsageError
            In the place of one that CUDA gives for what it forbids in a capture of the user's own.
        """
        harmless = self.checks.take() is error
        if isinstance(error, (ContractError, CommError)):
            self.fail(error)
            finalize.failed(error)
        elif isinstance(error, UsageError):
            self.put_rank(error)
            amid = isinstance(error, OutOfMemory) and not self.recording
            if (amid or self.running.refused(error)) and not harmless:
                self.broken_off(name, error)
        elif not (isinstance(error, KVStoreError) or self.recording or harmless):
            reported = self.comm.reported(error, name)
            if isinstance(reported, CommError):
                self.note(name, reported)
            else:
                self.broken_off(name, error)
            if reported is not None:
                raise reported from error

    def put_rank(self, error: UsageError) -> None:
        """Put this rank before the text of a `UsageError`; other errors name it themselves."""
        text = str(error)
        if not text.startswith(self._where):  # as one does that passed an updater on its way
            error.args = (self._where + text,)

    def broken_off(self, name: str, error: BaseException) -> None:
        """Note Ctrl-C, a signal handler, no memory: others may have done what this rank did not."""
        if not self._alone and self.failure is None:
            self.fail(
                CommAborted(
                    f"{self._where}{name} was broken off by {type(error).__name__}, so this rank "
                    f"may be a call behind the others; close the store and make a new one"
                )
            )

    def fail(self, error: ContractError | CommError) -> None:
        """Break the store, and write what this rank knows where ``NCCLKV_DUMP`` asks for it."""
        self.failure = error
        if not self._alone:
            dump.write_of(self.comm, error)

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Refuse the store's verbs, and no others, while code of the user's runs on some ranks."""
        outer, self.inside = self.inside, "an updater"
        verb, self.running.verb = self.running.verb, ""
        try:
            yield
        finally:
            self.inside, self.running.verb = outer, verb

    @contextmanager
    def named(self) -> Iterator[None]:
        """Name this rank in a `UsageError`."""
        try:
            yield
        except UsageError as error:
            self.put_rank(error)
            raise

    def check(self, name: str) -> None:
        """Refuse a call on a closed store, and one from another thread or process."""
        if self.closed:
            raise UsageError(f"{name}: the store {self._name!r} is closed; create a new one")
        process = getpid()
        if process != self._process:
            raise UsageError(
                f"{name}: the store {self._name!r} was created in process {self._process}, and "
                f"this is its fork {process}; create stores after forking"
            )
        if get_ident() != self._thread:
            raise UsageError(
                f"{name} was called from thread {current_thread().name!r}, which did not "
                f"create the store {self._name!r}; a store belongs to one thread: create another"
            )

    def refuse_pickling(self) -> NoReturn:
        """A store is memory and connections of this process; neither can travel."""
        raise UsageError(
            f"{self._where}the store {self._name!r} cannot be pickled or copied: its connections "
            f"to other ranks belong to this process; create a store in each process instead"
        )


class Verb:
    """What a verb runs in; it serves for every call of the verb.

    A class, since entering and leaving a generator takes several times as long.
    """

    __slots__ = ("_allowed_inside", "_name", "_running", "_session")

    def __init__(self, session: Session, name: str, allowed_inside: Collection[str]) -> None:
        self._session = session
        self._running = session.running
        self._name = name
        self._allowed_inside = allowed_inside

    def __enter__(self) -> None:
        session, name = self._session, self._name
        try:
            session.check(name)
            if self._running.verb:
                self._running.check(name)
            if session.inside and session.inside not in self._allowed_inside:
                raise UsageError(
                    f"{name} was called inside {session.inside}; call it after its end"
                )
            if session.failure is not None:
                raise again(session.failure)
            session.comm.sync_stream()
        except UsageError as error:
            session.put_rank(error)
            raise
        except (ContractError, CommError) as error:
            if session.failure is None:  # found while no verb was under way
                session.fail(error)
                finalize.failed(error)
            raise
        # Last: an exception that a signal handler raises in here must not leave it set.
        self._running.verb = name

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is not None:
                self._session.note(self._name, error)
        finally:
            self._running.verb = ""
