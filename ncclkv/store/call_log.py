"""CallLog: the collective calls of one store on one rank, as codes that ranks compare.

Ranks must make the same calls in the same order.  Each call is recorded before it has any effect.
All calls so far make one integer, the digest of `ncclkv.table.contract`, which every collective
carries.  The last calls, with their lines in the program, are kept by
`ncclkv.comm.diagnosis.flight_recorder`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from sys import _getframe
from typing import Any
from weakref import WeakMethod

from ncclkv.comm.base import Communicator
from ncclkv.comm.diagnosis.call_ring import LoggedKeys, call_site
from ncclkv.engine.batch import Pull, Push
from ncclkv.frames import user_frame
from ncclkv.table import contract
from ncclkv.table.registry import Key, Registry

_MAX_LENGTH = 80
"""Characters of the hyperparameters that a text shows."""


class _Codes(dict[Key, int]):
    """Codes of keys in the log, each computed when a call first has the key."""

    def __init__(self, registry: Registry, code: Callable[[int], int]) -> None:
        super().__init__()
        self._registry = registry
        self._code = code

    def __missing__(self, key: Key) -> int:
        code = self[key] = self._code(self._registry[key].index)
        return code


class CallLog:
    """Records this rank's calls.

    Parameters
    ----------
    comm : Communicator
    registry : Registry
    missing_zeros : bool
        Whether ranks may push different keys; then pushes are not recorded.
    check : callable
        Called before each record if `missing_zeros`; refuses hyperparameters that cannot be sent.
    hyperparameters : callable
        Returns the hyperparameters of the last push, the same object until they change; or None.

    Attributes
    ----------
    disabled : bool
        Whether calls are not recorded: a captured call is not executed, and in an uneven block
        ranks may make different calls.
    """

    def __init__(
        self,
        comm: Communicator,
        registry: Registry,
        check: Callable[[], object],
        hyperparameters: Callable[[], Mapping[str, Any] | None],
        *,
        missing_zeros: bool,
    ) -> None:
        self.disabled = comm.calls is None
        self._missing_zeros = missing_zeros
        self._check = check
        self._hyperparameters = hyperparameters
        self._agreed: Mapping[str, Any] | None = None
        self._digest = comm.digest
        self._registry = registry
        if comm.calls is not None:
            self._log = comm.calls.recorder.log
            # A strong reference would keep a dropped store's memory until garbage collection.
            comm.calls.differing_keys = WeakMethod(self._differing_keys)
        self._pushed = _Codes(registry, contract.push_code)
        self._read = _Codes(registry, contract.pull_code)

    def record_push(self, verb: str, push: Push, pull: Pull | None, priority: int) -> None:
        """Record a push, and the pull that the same call makes."""
        if self._missing_zeros:
            if pull is not None:
                self.record("pull", (), pull.keys, pull.logged)
        elif pull is None:
            self.record(verb, push.indices, (), push.logged, priority)
        elif not self.disabled:
            code = self._code(push.logged, push.indices, ()) + self._code(
                pull.logged, (), pull.keys
            )
            both = LoggedKeys(code & contract.MASK)
            self.record(verb, push.indices, pull.keys, both, priority)

    def record(
        self,
        verb: str,
        pushed: Collection[Key] = (),
        read: Sequence[Key] = (),
        logged: LoggedKeys | None = None,
        priority: int = 0,
        arguments: str = "",
        items: str = "",
    ) -> None:
        """Record a call: append it to the log, with its text if it is new; advance the digest.

        Parameters
        ----------
        verb : str
        pushed : collection of keys
        read : sequence of keys
            The keys that the call pulls or waits for; keys may repeat.
        logged : LoggedKeys, optional
            The same object whenever the call has these keys.
        priority : int
        arguments : str
            A text of arguments that are no keys; `logged` has their code.
        items : str
            The items of a list that `arguments` does not show completely.
        """
        if self.disabled:
            return
        if self._missing_zeros:
            self._check()
            pushed = ()
        logged = logged or LoggedKeys()
        if pushed and self._hyperparameters() is not self._agreed:
            logged, arguments = self._with_hyperparameters(logged, pushed, read, arguments)
        digest, log = self._digest, self._log
        last, following = logged.last, None
        if last is not None and logged.verb == verb and logged.priority == priority:
            try:  # noqa: SIM105  # a `with` block makes three calls
                following = log.repeat(last, digest.value, _getframe(1 + last.depth))
            except ValueError:  # the stack is shorter when C calls the verb
                pass
        if following is None:  # the first call with these keys, or one from another line
            keys, frame = self._code(logged, pushed, read), _getframe(1)
            verb_code, user = contract.call_code(verb, priority), user_frame(frame)
            call = log.find(verb_code, keys, user)
            if call is None:
                named = dict.fromkeys([*pushed, *read])
                text = contract.describe(verb, named, priority, arguments)
                call = log.intern(verb_code, keys, f"{text} at {call_site(frame)}", frame, items)
            logged.last, logged.verb, logged.priority = call, verb, priority
            following = log.append(call, digest.value)
        digest.value = following

    def agree_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Note hyperparameters that all ranks have compared."""
        if self._hyperparameters() is not None:
            self._agreed = hyperparameters

    def _with_hyperparameters(
        self, logged: LoggedKeys, pushed: Collection[Key], read: Sequence[Key], arguments: str
    ) -> tuple[LoggedKeys, str]:
        """Add hyperparameters that have changed since the last push to a call.

        Ranks with other hyperparameters would update other values; so the call's code has them.
        """
        found, before = self._hyperparameters(), self._agreed or {}
        self._agreed = found
        if found is None:
            return logged, arguments
        names = dict.fromkeys([*before, *found])
        changed = [name for name in names if before.get(name) != found.get(name)]
        if not changed:
            return logged, arguments
        text = ", ".join(f"{name}={found.get(name)}" for name in changed)
        code = self._code(logged, pushed, read) + contract.text_code(text)
        shown = text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}..."
        described = ", ".join(each for each in (arguments, f"optimizer: {shown}") if each)
        return LoggedKeys(code & contract.MASK), described

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop recording within a block."""
        before, self.disabled = self.disabled, True
        try:
            yield
        finally:
            self.disabled = before

    def _code(self, logged: LoggedKeys, pushed: Collection[Key], read: Collection[Key]) -> int:
        """Return the code that stands for the keys of a call in any order, computed once."""
        if logged.code is None:
            total = sum(map(self._pushed.__getitem__, pushed))
            # A key that is read into several arrays counts once.
            total += sum(map(self._read.__getitem__, set(read)))
            logged.code = total & contract.MASK
        return logged.code

    def _differing_keys(self, first: int, second: int) -> tuple[Key | None, Key | None]:
        """Return the key that only the first call has, and the key that only the second has.

        Parameters
        ----------
        first, second : int
            The codes that stand for the keys of the two calls.
        """
        keys = [spec.key for spec in self._registry]
        keys_by_code = {codes[key]: key for codes in (self._pushed, self._read) for key in keys}
        return contract.differing_key(first, second, keys_by_code)
