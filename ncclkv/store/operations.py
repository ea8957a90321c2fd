"""The calls of one store on one rank: each is noted before anything is done for it.

Ranks must make the same calls in the same order.  What a rank has called is one number, the mark
of `ncclkv.table.contract`, which every collective carries; what it called last, and where in the
user's program, is on the board of `ncclkv.comm.board`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection
from pathlib import Path
from types import CodeType
from typing import Any

from ncclkv.engine.batch import Pull, Push
from ncclkv.engine.presence import Presence
from ncclkv.store.session import Session
from ncclkv.table import contract
from ncclkv.table.registry import Key, Registry

_OWN = (str(Path(__file__).resolve().parents[1]), contextlib.__file__)
"""Files whose calls are not the user's."""

_PLACE_LENGTH = 48


class Operations:
    """What this rank has called.

    Parameters
    ----------
    session : Session
        Of the store; what is captured is not done, and not noted.
    presence : Presence
        Of the store; ranks that may push different keys do not note pushes, and where they may
        make different calls, none.
    registry : Registry
    """

    def __init__(self, session: Session, presence: Presence, registry: Registry) -> None:
        comm = session.comm
        self._session = session
        self._presence = presence
        self._mark = comm.mark
        self._registry = registry
        self._board = None if comm.calls is None else comm.calls.board
        self._put = (lambda *call: None) if self._board is None else self._board.note
        self._texts: dict[tuple[int, int, int, int], tuple[int, CodeType]] = {}
        self._pushed: dict[Key, int] = {}
        self._read: dict[Key, int] = {}
        if comm.calls is not None:
            comm.calls.odd = self._odd

    def push(self, verb: str, push: Push, pull: Pull | None, priority: int) -> None:
        """Note a push, and the pull that follows it in the same call."""
        if self._idle():
            return
        if self._presence.zeros:
            if pull is not None:
                self.pull(pull)
            return
        if push.number is None:
            push.number = self.number(push.numbers, ())
        keys, read = push.number, () if pull is None else pull.keys
        if pull is not None:
            keys = (keys + self._of_pull(pull)) & contract.MASK
        self._note(verb, keys, push.numbers, read, priority)

    def pull(self, pull: Pull) -> None:
        """Note a pull."""
        if not self._idle():
            self._note("pull", self._of_pull(pull), (), pull.keys)

    def note(self, verb: str, pushed: Collection[Key] = (), read: Collection[Key] = ()) -> None:
        """Note another call."""
        if not self._idle():
            pushed = () if self._presence.zeros else pushed
            self._note(verb, self.number(pushed, read), pushed, read)

    def _idle(self) -> bool:
        """Whether nothing is to be noted."""
        return self._board is None or self._session.recording or self._presence.uneven

    def _of_pull(self, pull: Pull) -> int:
        if pull.number is None:
            pull.number = self.number((), pull.keys)
        return pull.number

    def _note(
        self,
        verb: str,
        keys: int,
        pushed: Collection[Key],
        read: Collection[Key],
        priority: int = 0,
    ) -> None:
        what = contract.number(verb, priority)
        frame = sys._getframe(3)
        while frame.f_code.co_filename.startswith(_OWN) and frame.f_back is not None:
            frame = frame.f_back
        place = what, keys, id(frame.f_code), frame.f_lasti
        known = self._texts.get(place)
        if known is None:
            words = contract.in_words(verb, dict.fromkeys([*pushed, *read]), priority)
            known = self._write(place, f"{words} at {_place(frame)}", frame.f_code)
        mark = self._mark
        mark.value = contract.follow(mark.value, what, keys)
        self._put(what, keys, known[0])

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

    def _write(
        self, place: tuple[int, int, int, int], text: str, code: CodeType
    ) -> tuple[int, CodeType]:
        """Write the words of a call down; the code is kept, for its address is in `place`."""
        board: Any = self._board
        if len(self._texts) >= board.texts:
            self._texts.clear()
        known = self._texts[place] = board.text(text), code
        return known

    def _odd(self, first: int, second: int) -> tuple[Key | None, Key | None]:
        """The keys that two calls do not have in common, by the numbers of their keys."""
        self._learn()
        numbers = {number: key for key, number in [*self._pushed.items(), *self._read.items()]}
        return contract.odd_key(first, second, numbers)


def _place(frame: Any) -> str:
    """A line of the user's program, as short as can be."""
    path = frame.f_code.co_filename
    here = os.path.relpath(path) if os.path.isabs(path) else path
    path = min(path, here, key=len)
    if len(path) > _PLACE_LENGTH:
        path = f"...{path[-_PLACE_LENGTH:]}"
    return f"{path}:{frame.f_lineno}"
