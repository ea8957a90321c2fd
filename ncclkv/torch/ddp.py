"""Names of torch's DDP that `DataParallel` takes, ignores or refuses: arguments and attributes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

import torch

from ncclkv.errors import NotSupported, UsageError

_MIB = 1024 * 1024


class DdpArguments(TypedDict, total=False):
    """Arguments of DDP that `DataParallel` takes by DDP's names, besides those of the same name."""

    device_ids: Sequence[Any] | None
    output_device: Any
    dim: int
    init_sync: bool
    process_group: Any
    bucket_cap_mb: float | None
    check_reduction: bool
    gradient_as_bucket_view: bool
    static_graph: bool
    delay_all_reduce_named_params: Any
    param_to_hook_all_reduce: Any
    mixed_precision: Any
    device_mesh: Any
    skip_all_reduce_unused_params: bool
    bucket_cap_mb_list: Sequence[int] | None
    batched_grad_copy: bool
    forward_sync_buffers: bool | None


_RANKS = (
    "choose the ranks by kvstore=ncclkv.create('dist', comm=comm), with a communicator of mpi4py"
)
_DELAYED = "leave it out: each bucket is reduced as soon as backward has its gradients"

_REFUSED = {
    "process_group": _RANKS,
    "device_mesh": _RANKS,
    "mixed_precision": "call the module in torch.autocast(), or convert it before you wrap it",
    "bucket_cap_mb_list": "give bucket_cap_mb, the limit of every bucket",
    "delay_all_reduce_named_params": _DELAYED,
    "param_to_hook_all_reduce": _DELAYED,
}
"""Arguments that are refused unless they are None, and the change that helps."""

_STORE = ".kvstore has .rank, .num_workers and .local_rank"
_PLAN = "print(model.kvstore.explain_plan()) shows the buckets and their times"
_BY_ARGUMENT = "the argument of this name has no effect"

ABSENT = {
    "process_group": _STORE,
    "device_mesh": _STORE,
    "join_process_group": _STORE,
    "reducer": _PLAN,
    "logger": _PLAN,
    "bucket_bytes_cap": _PLAN,
    "_get_ddp_logging_data": _PLAN,
    "dim": _BY_ARGUMENT,
    "static_graph": _BY_ARGUMENT,
    "_set_static_graph": "leave it out: graphs may change",
    "gradient_as_bucket_view": "the argument gradient_as_view chooses",
    "forward_sync_buffers": "use .broadcast_buffers",
    "mixed_precision": "call the module in torch.autocast()",
    "parameters_to_ignore": "use .module._ddp_params_and_buffers_to_ignore",
    "join_hook": "use `with model.join():`, for one module at a time",
    "join_device": "use .device",
    "_register_builtin_comm_hook": "use DataParallel(..., compress='fp16')",
    "_register_fused_optim": "make the optimizer's step after backward",
}
"""Attributes of DDP that `DataParallel` lacks, and the thing to use instead."""


def check(given: DdpArguments, device: torch.device) -> None:
    """Refuse arguments whose effect `DataParallel` does not have, and devices of other modules.

    Parameters
    ----------
    given : DdpArguments
    device : torch.device
        The device of the module.

    Raises
    ------
    NotSupported, UsageError
    """
    for name, advice in _REFUSED.items():
        if given.get(name) is not None:
            raise NotSupported(f"DataParallel does not have DDP's argument {name!r}; {advice}")
    _check_devices(given, device)


def _check_devices(given: DdpArguments, device: torch.device) -> None:
    """Refuse ``device_ids`` and ``output_device`` if the module is on another device."""
    ids = given.get("device_ids")
    if ids is not None and (not isinstance(ids, (list, tuple)) or len(ids) > 1):
        raise UsageError(
            f"DataParallel: device_ids={ids!r}, and a rank trains on one device; give a list of "
            f"this device alone, as device_ids=[local_rank], or leave device_ids out"
        )
    for name, each in _named_devices(given):
        try:
            named = torch.device("cuda", each) if isinstance(each, int) else torch.device(each)
        except (RuntimeError, TypeError) as error:
            raise UsageError(
                f"DataParallel: {name} has {each!r}, which is not a device; give the number of a "
                f"GPU, such as 0, or leave {name} out"
            ) from error
        if named.type == "cuda" and named.index is None:
            named = torch.device("cuda", torch.cuda.current_device())
        if named != device:
            raise UsageError(
                f"DataParallel: {name} names {named}, and the module is on {device}; leave {name} "
                f"out, or move the module first, by module.to({str(named)!r})"
            )


def _named_devices(given: DdpArguments) -> Iterator[tuple[str, Any]]:
    """Return the devices that the arguments name, with the argument of each."""
    for each in given.get("device_ids") or ():
        yield "device_ids", each
    output = given.get("output_device")
    if output is not None:
        yield "output_device", output


def bucket_bytes(own: Any, given: DdpArguments) -> Any:
    """Return the option of a store for the size of buckets, by our name or DDP's; else None.

    Parameters
    ----------
    own : int or "auto", optional
    given : DdpArguments
        May have a limit in MiB, as ``bucket_cap_mb``.

    Raises
    ------
    UsageError

    Examples
    --------
    >>> bucket_bytes(None, {"bucket_cap_mb": 0.5}), bucket_bytes(1000, {}), bucket_bytes(None, {})
    (524288, 1000, None)
    """
    cap = given.get("bucket_cap_mb")
    if cap is None:
        return own
    if own is not None:
        raise UsageError(
            f"DataParallel: bucket_bytes={own!r} and bucket_cap_mb={cap!r} are both limits of a "
            f"bucket; give one of the two"
        )
    if isinstance(cap, bool) or not (isinstance(cap, (int, float)) and 0 <= cap < 2**40):
        raise UsageError(
            f"DataParallel: bucket_cap_mb={cap!r} is not a number of MiB; give 25, or leave it out"
        )
    return int(cap * _MIB)


def sync_buffers(broadcast_buffers: bool | None, given: DdpArguments) -> bool:
    """Return whether buffers follow rank 0, by either of DDP's two names of this flag."""
    flags = given.get("forward_sync_buffers"), broadcast_buffers
    return next((flag for flag in flags if flag is not None), True)
