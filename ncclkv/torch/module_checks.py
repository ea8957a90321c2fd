"""Checks of a module and of its store, before the module is wrapped."""

from __future__ import annotations

from typing import Any

import torch

from ncclkv.errors import NotSupported, UsageError
from ncclkv.store.create import create
from ncclkv.store.kvstore import KVStore
from ncclkv.torch.module_gradients import check_unwrapped
from ncclkv.torch.module_parameters import ModuleParameters, ignored_names
from ncclkv.torch.views import check_tensor

_UPDATES = "every rank"


def checked(
    module: torch.nn.Module,
) -> tuple[ModuleParameters, dict[str, torch.Tensor]]:
    """Return a module's parameters and buffers by name; refuse those that no store can hold."""
    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"DataParallel: {type(module).__name__} is not a torch.nn.Module; wrap a module"
        )
    found, ignored = ModuleParameters(module), ignored_names(module)
    parameters = found.by_key
    buffers = {name: each for name, each in module.named_buffers() if name not in ignored}
    if not any(each.requires_grad for each in parameters.values()):
        raise UsageError(
            f"DataParallel: no parameter of {type(module).__name__} requires a gradient, so there "
            f"is nothing to reduce; call the module without DataParallel"
        )
    devices = {str(each.device) for each in (*parameters.values(), *buffers.values())}
    if len(devices) > 1:
        raise UsageError(
            f"DataParallel: the module is on several devices, {', '.join(sorted(devices))}; move "
            f"it to one device"
        )
    for name, tensor in (*parameters.items(), *buffers.items()):
        check_tensor(name, tensor)
    _check_norms(module)
    check_unwrapped(parameters)
    return found, buffers


def _check_norms(module: torch.nn.Module) -> None:
    """Refuse SyncBatchNorm without torch.distributed: each rank would use its own statistics."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.SyncBatchNorm):
            raise NotSupported(
                f"DataParallel: {name or 'the module'!r} is a SyncBatchNorm, which averages its "
                f"statistics over the ranks of torch.distributed, and that is not initialized; use "
                f"BatchNorm, whose statistics are those of each rank's batch"
            )


def store_of(kvstore: str | KVStore, device: torch.device, bucket_bytes: Any) -> KVStore:
    """Return the store of a module: a new store, or the store given if it can serve.

    The name ``"dist"`` stands for a store in the memory of the module's device.
    """
    if isinstance(kvstore, str):
        own = "dist_sync" if device.type == "cpu" else "nccl"
        limit = {} if bucket_bytes is None else {"bucket_bytes": bucket_bytes}
        return create(own if kvstore.lower() == "dist" else kvstore, **limit)
    if not isinstance(kvstore, KVStore):
        raise UsageError(
            f"DataParallel: kvstore is a {type(kvstore).__name__}; give a name or a store of "
            f"ncclkv.create, and devices as device_ids=[...]"
        )
    if bucket_bytes is not None:
        raise UsageError(
            f"DataParallel: the store that was given has buckets of its own; give it the limit: "
            f"ncclkv.create({kvstore.type!r}, bucket_bytes={bucket_bytes!r})"
        )
    if kvstore.keys():
        raise UsageError(
            f"DataParallel: the store has keys, {kvstore.keys()[0]!r} the first, and the module "
            f"needs a store of its own; create another store"
        )
    if kvstore.update_on != _UPDATES:
        raise UsageError(
            f"DataParallel: the store updates on {kvstore.update_on}, and every rank needs the "
            f"gradients; create it with update_on='every_rank'"
        )
    return kvstore
