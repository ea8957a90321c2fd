"""Verbs of MXNet that this version does not have yet: each says so, and what to do meanwhile."""

from __future__ import annotations

from typing import Any

from ncclkv.errors import NotSupported
from ncclkv.store.core import Core


class LaterVerbs(Core):
    """Sparse rows, compression, optimizer states and checkpoints."""

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        """Raise `NotSupported`."""
        raise NotSupported(
            "row_sparse_pull is not in this version: values are dense; pull the whole key"
        )

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Raise `NotSupported`."""
        raise NotSupported(
            "set_gradient_compression is not in this version; push float16 for half the bytes"
        )

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Raise `NotSupported`."""
        raise NotSupported("save_optimizer_states is not in this version; start anew from weights")

    def load_optimizer_states(self, fname: str) -> None:
        """Raise `NotSupported`."""
        raise NotSupported("load_optimizer_states is not in this version; start anew from weights")

    def save(self, directory: Any) -> None:
        """Raise `NotSupported`."""
        raise NotSupported("save is not in this version; pull the keys and numpy.savez them")

    def load(self, directory: Any) -> None:
        """Raise `NotSupported`."""
        raise NotSupported("load is not in this version; reset the keys to what numpy.load gives")
