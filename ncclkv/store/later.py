"""Verbs of MXNet that this version does not have yet: each says so, and what to do meanwhile."""

from __future__ import annotations

from typing import Any, NoReturn

from ncclkv.errors import NotSupported
from ncclkv.store.core import Core


class LaterVerbs(Core):
    """Sparse rows and compression."""

    def _refuse(self, verb: str, instead: str) -> NoReturn:
        """Raise `NotSupported`, with what to do instead."""
        with self._session.named():
            raise NotSupported(f"{verb} is not in this version; {instead}")

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        """Raise `NotSupported`."""
        self._refuse("row_sparse_pull", "values are dense; pull the whole key")

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Raise `NotSupported`."""
        self._refuse("set_gradient_compression", "push float16 for half the bytes")
