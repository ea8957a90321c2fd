"""Who may call a store, and when: one thread, one process, until it is closed or broken."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NoReturn

from ncclkv.comm.base import Communicator
from ncclkv.errors import CommAborted, CommError, ContractError, KVStoreError, UsageError

IN_GROUP = "a group"
IN_CAPTURE = "a capture"
BLOCKS = (IN_GROUP, IN_CAPTURE)
"""What a verb may be called inside of, and `Session.inside` may be; it says more in an updater."""


class Session:
    """The state that every verb looks at first.

    Attributes
    ----------
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
        self._comm = comm
        self._where = f"rank {comm.rank} of {comm.size}: "
        self._thread = threading.get_ident()
        self._process = os.getpid()

    @contextmanager
    def verb(self, name: str, *, allowed_inside: Collection[str] = ()) -> Iterator[None]:
        """Let a verb run, if it may, and note what breaks the store."""
        with self.named():
            self.check(name)
            if self.inside and self.inside not in allowed_inside:
                raise UsageError(f"{name} was called inside {self.inside}; call it after its end")
            if self.failure is not None:
                raise type(self.failure)(*self.failure.args)
            self._comm.follow()
            try:
                yield
            except (ContractError, CommError) as error:
                self.failure = error
                raise
            except KVStoreError:
                raise
            except BaseException as error:
                if not self.recording:
                    self.broken_off(name, error)
                raise

    def broken_off(self, name: str, error: BaseException) -> None:
        """Note Ctrl-C, a signal handler, no memory: others may have done what this rank did not."""
        if not self._alone:
            self.failure = CommAborted(
                f"{self._where}{name} was broken off by {type(error).__name__}, so this rank may "
                f"be a call behind the others; close the store and make a new one"
            )

    @contextmanager
    def named(self) -> Iterator[None]:
        """Put this rank before the text of a `UsageError`; other errors name it themselves."""
        try:
            yield
        except UsageError as error:
            text = str(error)
            if not text.startswith(self._where):  # as one does that passed an updater on its way
                error.args = (self._where + text,)
            raise

    def check(self, name: str) -> None:
        """Refuse a call on a closed store, and one from another thread or process."""
        if self.closed:
            raise UsageError(f"{name}: the store {self._name!r} is closed; create a new one")
        if os.getpid() != self._process:
            raise UsageError(
                f"{name}: the store {self._name!r} was created in process {self._process}, and "
                f"this is its fork {os.getpid()}; create stores after forking"
            )
        if threading.get_ident() != self._thread:
            raise UsageError(
                f"{name} was called from thread {threading.current_thread().name!r}, which did not "
                f"create the store {self._name!r}; a store belongs to one thread: create another"
            )

    def refuse_pickling(self) -> NoReturn:
        """A store is memory and connections of this process; neither can travel."""
        raise UsageError(
            f"{self._where}the store {self._name!r} cannot be pickled or copied: its connections "
            f"to other ranks belong to this process; create a store in each process instead"
        )
