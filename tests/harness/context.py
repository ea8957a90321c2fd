"""Access to the parts inside a store, for tests of effects that no verb shows."""

from __future__ import annotations

import ncclkv
from ncclkv.store.context import Context


def context_of(kv: ncclkv.KVStore) -> Context:
    """Return the parts of a store: its communicator, engine, session and so on."""
    return kv._context
