"""Who may call a store, and when: one thread, one process, until it is closed or broken."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from os import getpid
from threading import current_thread, get_ident
from typing import NoReturn

from ncclkv.comm.base import Communicator
from ncclkv.errors import CommAborted, CommError, ContractError, KVStoreError, UsageError

IN_GROUP = "a group"
IN_CAPTURE = "a capture"
IN_UNEVEN = "an uneven block"
BLOCKS = (IN_GROUP, IN_CAPTURE, IN_UNEVEN)
"""What a verb may be called inside of, and `Session.inside` may be; it says more in an updater."""


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
    """

    def __init__(self, name: str, comm: Communicator) -> None:
        self.closed = False
        self.failure: ContractError | CommError | None = None
        self.inside = ""
        self.recording = False
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
        """Look at what a verb raised: it may break the store."""
        if isinstance(error, (ContractError, CommError)):
            self.failure = error
        elif isinstance(error, UsageError):
            self.put_rank(error)
        elif not isinstance(error, KVStoreError) and not self.recording:
            self.broken_off(name, error)

    def put_rank(self, error: UsageError) -> None:
        """Put this rank before the text of a `UsageError`; other errors name it themselves."""
        text = str(error)
        if not text.startswith(self._where):  # as one does that passed an updater on its way
            error.args = (self._where + text,)

    def broken_off(self, name: str, error: BaseException) -> None:
        """Note Ctrl-C, a signal handler, no memory: others may have done what this rank did not."""
        if not self._alone and self.failure is None:
            self.failure = CommAborted(
                f"{self._where}{name} was broken off by {type(error).__name__}, so this rank may "
                f"be a call behind the others; close the store and make a new one"
            )

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Refuse the store's verbs while code of the user's runs on some of the ranks."""
        outer, self.inside = self.inside, "an updater"
        try:
            yield
        finally:
            self.inside = outer

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

    __slots__ = ("_allowed_inside", "_name", "_session")

    def __init__(self, session: Session, name: str, allowed_inside: Collection[str]) -> None:
        self._session = session
        self._name = name
        self._allowed_inside = allowed_inside

    def __enter__(self) -> None:
        session, name = self._session, self._name
        try:
            session.check(name)
            if session.inside and session.inside not in self._allowed_inside:
                raise UsageError(
                    f"{name} was called inside {session.inside}; call it after its end"
                )
            if session.failure is not None:
                raise type(session.failure)(*session.failure.args)
            session.comm.follow()
        except UsageError as error:
            session.put_rank(error)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._session.note(self._name, error)
