"""`SharedVerb`: the ``with`` block of a verb that every thread may call, one thread at a time."""

from __future__ import annotations

from collections.abc import Callable

from ncclkv import concurrency
from ncclkv.store.running import Running, running
from ncclkv.store.session import IN_OVERLAP, Session, Verb


class SharedVerb:
    """The ``with`` block of a verb in an overlap block, in which the store is lent to all threads.

    The calling thread holds the communicator's lock meanwhile, and has the store's GPU current.

    Attributes
    ----------
    closed : bool
        Whether the overlap block has ended; then only the store's own thread may call.  Set under
        the lock.
    """

    def __init__(self, session: Session, name: str) -> None:
        self.closed = False
        self._session = session
        self._name = name
        self._verbs: dict[Running, Verb] = {}
        self._entered: Verb | None = None
        self._give_back: Callable[[], None] | None = None

    def __enter__(self) -> None:
        comm = self._session.comm
        comm.lock.acquire()
        give_back = None
        try:
            verb = self._verb()
            give_back = comm.use_device()
            verb.__enter__()
        except BaseException:
            self._leave(give_back)
            raise
        self._entered, self._give_back = verb, give_back

    def _leave(self, give_back: Callable[[], None] | None) -> None:
        """Give the thread its own GPU back, and release the lock."""
        try:
            if give_back is not None:
                give_back()
        finally:
            self._session.comm.lock.release()

    def _verb(self) -> Verb:
        """Return the calling thread's own block, which refuses a verb inside another verb."""
        session, thread = self._session, running()
        if self.closed:  # while this thread waited for the lock
            with session.prefixing_rank():
                session.check_other(self._name)
        found = self._verbs.get(thread)
        if found is None:
            owner = session.owner[0], concurrency.get_ident()
            found = self._verbs[thread] = Verb(session, self._name, (IN_OVERLAP,), owner=owner)
        return found

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        verb, give_back = self._entered, self._give_back
        self._entered = self._give_back = None
        try:
            if verb is not None:
                verb.__exit__(kind, error, trace)
        finally:
            self._leave(give_back)
