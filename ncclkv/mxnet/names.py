"""The name ``"ncclkv"`` as the argument `kvstore` of MXNet's trainers.

``gluon.Trainer`` and ``Module`` look at a name before they create its store.  They create none for
one device and a name without ``dist``, and would train each rank alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import mxnet

import ncclkv
from ncclkv import env
from ncclkv.frames import warn
from ncclkv.mxnet.store import NCCLKV


def install() -> None:
    """Register the store, and change MXNet: its trainers create it for any count of devices."""
    mxnet.kvstore.KVStoreBase.register(NCCLKV)
    create = _creating(mxnet.model._create_kvstore)
    for module in (mxnet.model, mxnet.module.module, mxnet.gluon.trainer):
        module._create_kvstore = create


def _creating(choose: Callable[..., Any]) -> Callable[..., Any]:
    """Return MXNet's choice of a store, which takes our name and our stores too."""

    @functools.wraps(choose)
    def choose_store(kvstore: Any, num_device: int, arg_params: Any) -> Any:
        if isinstance(kvstore, str) and kvstore.lower() == NCCLKV.__name__.lower():
            kvstore = NCCLKV()
        elif isinstance(kvstore, ncclkv.KVStore):
            kvstore = NCCLKV(kvstore)
        elif isinstance(kvstore, str) and "dist" not in kvstore:
            _warn_of_many(kvstore)
        return choose(kvstore, num_device, arg_params)

    return choose_store


def _warn_of_many(kvstore: str) -> None:
    """Warn that each of several ranks trains alone."""
    if several := env.several_of_rank_0():
        warn(
            f"kvstore={kvstore!r} in each of {several} ranks trains {several} independent models; "
            f"kvstore='ncclkv' trains one"
        )
