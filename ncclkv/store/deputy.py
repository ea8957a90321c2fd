"""`deputized`: permission for a thread to call a store for the store's own thread."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ncclkv.store.kvstore import KVStore


def deputized(kv: KVStore) -> AbstractContextManager[None]:
    """Let the calling thread make the store's calls in a ``with`` block.

    The thread that created the store must wait meanwhile, as in a call that runs functions of the
    program in a thread of its own.
    """
    return kv._context.session.deputized()
