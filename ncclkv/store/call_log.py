"""CallLog: the collective calls of one store on one rank, as numbers that ranks compare.

Ranks must make the same calls in the same order.  Each call is recorded before anything is done for
it.  All calls so far make one number, the digest of `ncclkv.table.contract`, which every collective
carries.  The last calls, with their lines in the program, are kept by
`ncclkv.comm.diagnosis.flight_recorder`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from sys import _getframe
from weakref import WeakMethod

from ncclkv.comm.base import Communicator
from ncclkv.comm.diagnosis.call_log import call_site
from ncclkv.engine.batch import Pull, Push
from ncclkv.table import contract
from ncclkv.table.registry import Key, Registry


class CallLog:
    """Records this rank's calls.

    Parameters
    ----------
    comm : Communicator
    registry : Registry
    missing_zeros : bool
        Whether ranks may push different keys; then pushes are not recorded.
    check : callable
        Called before each record if `missing_zeros`: refuses what the next flush cannot send.

    Attributes
    ----------
    disabled : bool
        Whether calls are not recorded: a captured call is not done, and in an uneven block ranks
        may make different calls.
    """

    def __init__(
        self,
        comm: Communicator,
        registry: Registry,
        check: Callable[[], object],
        *,
        missing_zeros: bool,
    ) -> None:
        self.disabled = comm.calls is None
        self._missing_zeros = missing_zeros
        self._check = check
        self._digest = comm.digest
        self._registry = registry
        if comm.calls is not None:
            self._log = comm.calls.recorder.log
            # Weak, or a store that is dropped would keep its memory until garbage is collected.
            comm.calls.differing_keys = WeakMethod(self._differing_keys)
        self._pushed: dict[Key, int] = {}
        self._read: dict[Key, int] = {}

    def record_push(self, verb: str, push: Push, pull: Pull | None, priority: int) -> None:
        """Record a push, and the pull that the same call makes."""
        if self.disabled:
            return
        if self._missing_zeros:
            if pull is not None:
                self.record_pull(pull)
            return
        if push.code is None:
            push.code = self.code_of(push.indices, ())
        if pull is None:
            self._append(verb, push.code, push.indices, (), priority)
            return
        if pull.code is None:
            pull.code = self.code_of((), pull.keys)
        code = (push.code + pull.code) & contract.MASK
        self._append(verb, code, push.indices, pull.keys, priority)

    def record_pull(self, pull: Pull) -> None:
        """Record a pull."""
        if self.disabled:
            return
        if pull.code is None:
            pull.code = self.code_of((), pull.keys)
        self._append("pull", pull.code, (), pull.keys)

    def record(self, verb: str, pushed: Collection[Key] = (), read: Sequence[Key] = ()) -> None:
        """Record another call.

        Parameters
        ----------
        verb : str
        pushed : collection of keys
        read : sequence of keys
            Those that the call pulls or waits for; keys may repeat.
        """
        if not self.disabled:
            pushed = () if self._missing_zeros else pushed
            alone = len(read) == 1 and not pushed
            keys = self._read.get(read[0]) if alone else None
            if keys is None:
                keys = self.code_of(pushed, read)
            self._append(verb, keys, pushed, read)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Record nothing in a block."""
        before, self.disabled = self.disabled, True
        try:
            yield
        finally:
            self.disabled = before

    def _append(
        self,
        verb: str,
        keys: int,
        pushed: Collection[Key],
        read: Collection[Key],
        priority: int = 0,
    ) -> None:
        """Append a call to the log, with its words if they are new, and advance the digest."""
        if self._missing_zeros:
            self._check()
        what, digest, log = contract.call_code(verb, priority), self._digest, self._log
        frame = _getframe(2)
        while (following := log.append(what, keys, digest.value, frame)) is None:
            words = contract.describe(verb, dict.fromkeys([*pushed, *read]), priority)
            log.intern(what, keys, f"{words} at {call_site(frame)}", frame)
        digest.value = following

    def code_of(self, pushed: Collection[Key], read: Collection[Key]) -> int:
        """Return the number that stands for the keys of a call, in whatever order."""
        try:
            return self._sum(pushed, read)
        except KeyError:
            self._number_keys()
            return self._sum(pushed, read)

    def _sum(self, pushed: Collection[Key], read: Collection[Key]) -> int:
        """Return the sum of the keys' numbers, if all have them."""
        total = sum(map(self._pushed.__getitem__, pushed))
        # A key that is read into several arrays counts once.
        total += sum(map(self._read.__getitem__, read if len(read) < 2 else set(read)))
        return total & contract.MASK

    def _number_keys(self) -> None:
        """Give every key of the registry its numbers."""
        for spec in self._registry:
            self._pushed[spec.key] = contract.push_code(spec.index)
            self._read[spec.key] = contract.pull_code(spec.index)

    def _differing_keys(self, first: int, second: int) -> tuple[Key | None, Key | None]:
        """Return the key that only the first call has, and the key that only the second has.

        Parameters
        ----------
        first, second : int
            The numbers that stand for the keys of the two calls.
        """
        self._number_keys()
        numbers = {number: key for key, number in [*self._pushed.items(), *self._read.items()]}
        return contract.differing_key(first, second, numbers)
