"""Verbs that wait until what was pushed is done."""

from __future__ import annotations

from ncclkv.store.keys import key_list
from ncclkv.store.session import IN_UNEVEN
from ncclkv.store.transfers import Transfers
from ncclkv.typing import KeyLike, Keys, KeyT


class WaitVerbs(Transfers):
    """``wait`` and ``barrier``."""

    def wait(self, key: KeyLike | Keys[KeyT] | None = None) -> None:
        """Flush what was pushed, of some keys or of all, and wait until it is done; collective.

        Parameters
        ----------
        key : int or str, or list of them, optional
        """
        with self._session.verb("wait", allowed_inside=(IN_UNEVEN,)):
            keys = None if key is None else key_list(key)
            for name in keys or ():
                self._engine.layout.registry[name]
            self._operations.note("wait", read=keys or ())
            self._engine.settle(None if keys is None else self._engine.layout.buckets(keys))
            self._engine.tell()
            self._comm.synchronize()
            self._engine.report()
            if self._verify is not None and not self._engine.presence.uneven:
                self._verify.settled(keys)
        self._raise_late()

    def barrier(self) -> None:
        """Flush what was pushed, and wait until every rank has come here; collective."""
        with self._session.verb("barrier"):
            self._operations.note("barrier")
            self._engine.settle()
            self._engine.tell()
            self._comm.synchronize()
            self._engine.report()
            if self._verify is not None:
                self._verify.settled()
            self._comm.control.barrier("kv.barrier")
        self._raise_late()

    _barrier = barrier
