"""The calls of one store on one rank: each is noted before anything is done for it.

Ranks must make the same calls in the same order.  What a rank has called is one number, the mark
of `ncclkv.table.contract`, which every collective carries; what it called last, and where in the
user's program, is on the board of `ncclkv.comm.diagnosis.flight_recorder`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from sys import _getframe
from weakref import WeakMethod

from ncclkv.comm.base import Communicator
from ncclkv.comm.diagnosis.call_log import call_site
from ncclkv.engine.batch import Pull, Push
from ncclkv.engine.flush_agreement import FlushAgreement
from ncclkv.table import contract
from ncclkv.table.registry import Key, Registry


class CallLog:
    """What this rank has called.

    Parameters
    ----------
    comm : Communicator
    presence : Presence
        Of the store; ranks that may push different keys do not note pushes.
    registry : Registry

    Attributes
    ----------
    disabled : bool
        Whether calls are not recorded: what is captured is not done, and in an uneven block ranks
        may make different calls.
    """

    def __init__(self, comm: Communicator, presence: FlushAgreement, registry: Registry) -> None:
        self.disabled = comm.calls is None
        self._presence = presence
        self._mark = comm.mark
        self._registry = registry
        if comm.calls is not None:
            self._log = comm.calls.recorder.log
            # Weak, or a store that is dropped would keep its memory until garbage is collected.
            comm.calls.differing_keys = WeakMethod(self._odd)
        self._pushed: dict[Key, int] = {}
        self._read: dict[Key, int] = {}

    def push(self, verb: str, push: Push, pull: Pull | None, priority: int) -> None:
        """Note a push, and the pull that follows it in the same call."""
        if self.disabled:
            return
        if self._presence.zeros:
            if pull is not None:
                self.pull(pull)
            return
        if push.code is None:
            push.code = self.number(push.indices, ())
        keys, read = push.code, () if pull is None else pull.keys
        if pull is not None:
            keys = (keys + self._of_pull(pull)) & contract.MASK
        self._note(verb, keys, push.indices, read, priority)

    def pull(self, pull: Pull) -> None:
        """Note a pull."""
        if not self.disabled:
            self._note("pull", self._of_pull(pull), (), pull.keys)

    def note(self, verb: str, pushed: Collection[Key] = (), read: Sequence[Key] = ()) -> None:
        """Note another call."""
        if not self.disabled:
            pushed = () if self._presence.zeros else pushed
            alone = len(read) == 1 and not pushed
            keys = self._read.get(read[0]) if alone else None
            if keys is None:
                keys = self.number(pushed, read)
            self._note(verb, keys, pushed, read)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Record nothing in a block."""
        before, self.disabled = self.disabled, True
        try:
            yield
        finally:
            self.disabled = before

    def _of_pull(self, pull: Pull) -> int:
        if pull.code is None:
            pull.code = self.number((), pull.keys)
        return pull.code

    def _note(
        self,
        verb: str,
        keys: int,
        pushed: Collection[Key],
        read: Collection[Key],
        priority: int = 0,
    ) -> None:
        what, mark, log = contract.number(verb, priority), self._mark, self._log
        frame = _getframe(2)
        while (following := log.append(what, keys, mark.value, frame)) is None:
            words = contract.in_words(verb, dict.fromkeys([*pushed, *read]), priority)
            log.intern(what, keys, f"{words} at {call_site(frame)}", frame)
        mark.value = following

    def number(self, pushed: Collection[Key], read: Collection[Key]) -> int:
        """The number of the keys of a call."""
        try:
            return self._sum(pushed, read)
        except KeyError:
            self._learn()
            return self._sum(pushed, read)

    def _sum(self, pushed: Collection[Key], read: Collection[Key]) -> int:
        """The same, of keys that have numbers."""
        total = sum(map(self._pushed.__getitem__, pushed))
        # Several arrays may stand for a key, which counts once.
        total += sum(map(self._read.__getitem__, read if len(read) < 2 else set(read)))
        return total & contract.MASK

    def _learn(self) -> None:
        """Number all keys."""
        for spec in self._registry:
            self._pushed[spec.key] = contract.pushed(spec.index)
            self._read[spec.key] = contract.read(spec.index)

    def _odd(self, first: int, second: int) -> tuple[Key | None, Key | None]:
        """The keys that two calls do not have in common, by the numbers of their keys."""
        self._learn()
        numbers = {number: key for key, number in [*self._pushed.items(), *self._read.items()]}
        return contract.odd_key(first, second, numbers)
