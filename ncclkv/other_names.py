"""Names of other libraries that ncclkv lacks, with what replaces them; and their objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CREATE = "ncclkv.create('dist_sync') replaces mx.kv.create('dist_sync')"
_OWN = (
    "MXNet's own runs on a store of ncclkv.mxnet.create('dist_sync') by "
    "kv.set_updater(mx.optimizer.get_updater(optimizer))"
)

OF_PACKAGE: Mapping[str, str] = {
    "kv": _CREATE,
    "kvstore": _CREATE,
    **dict.fromkeys(("rank", "local_rank"), "read it from a store: ncclkv.create('dist').rank"),
    **dict.fromkeys(
        ("allreduce", "allgather", "barrier"), "it is a verb of a store, kv = ncclkv.create('dist')"
    ),
    "size": "read it from a store: ncclkv.create('dist').num_workers",
    "init": "no call is needed; a store, kv = ncclkv.create('dist'), joins the ranks",
    "init_process_group": "no call is needed; kv = ncclkv.create('dist_sync') joins the ranks",
    "shutdown": "no call is needed; kv.close() ends a store",
    "DistributedOptimizer": "wrap the module: ncclkv.torch.DataParallel(model)",
    "broadcast_parameters": "ncclkv.torch.DataParallel(model) gives all ranks rank 0's parameters",
    **dict.fromkeys(
        ("UsageError", "NotSupported", "OrderMismatch", "RankLost", "CommTimeout", "LaunchError"),
        "errors are in ncclkv.errors",
    ),
    "gluon": "after `import ncclkv.mxnet` call mxnet's gluon.Trainer(..., kvstore='ncclkv')",
}
"""Advice by names of the packages mxnet, horovod and torch.distributed, and of errors."""

OF_STORES: Mapping[str, str] = {
    "get_type": "read kv.type",
    **dict.fromkeys(
        ("size", "world_size", "get_world_size", "get_group_size", "Get_size"),
        "read kv.num_workers",
    ),
    **dict.fromkeys(("get_rank", "Get_rank"), "read kv.rank"),
    "all_reduce": "call kv.allreduce(x, out=x)",
    "Allreduce": "call kv.allreduce(x, out=y)",
    "all_gather": "call kv.allgather(x)",
    "Allgather": "call kv.allgather(x, out=y)",
    **dict.fromkeys(
        ("reduce", "gather", "Reduce", "Gather"), "call kv.allreduce or kv.allgather, for all ranks"
    ),
    **dict.fromkeys(("bcast", "Bcast", "scatter"), "call kv.broadcast_object(x)"),
    **dict.fromkeys(
        ("send", "recv", "isend", "irecv", "Send", "Recv", "alltoall"),
        "there are no messages between two ranks; mpi4py's MPI.COMM_WORLD sends them",
    ),
    "Barrier": "call kv.barrier()",
    **dict.fromkeys(("items", "values", "get"), "call kv.pull(kv.keys())"),
    "monitored_barrier": "call kv.barrier(), whose error names the missing ranks",
    "destroy_process_group": "call kv.close()",
    "all_gather_object": "call kv.allgather_object(x)",
    "broadcast_object_list": "call kv.broadcast_object(x)",
    "get_num_dead_node": "when a rank dies, the calls of the other ranks raise RankLost",
    "set_barrier_before_exit": "ranks always wait for each other at their exit",
    "_send_command_to_servers": "there are no servers; set_updater and set_optimizer reach all "
    "ranks, and broadcast sends arrays",
}
"""Advice by names of MXNet's KVStore, of mpi4py's communicators and of torch.distributed."""

OF_TORCH: Mapping[str, str] = {
    **dict.fromkeys(
        ("DistributedDataParallel", "DDP"), "ncclkv.torch.DataParallel(model) takes its arguments"
    ),
    **dict.fromkeys(
        ("FullyShardedDataParallel", "FSDP", "fully_shard"),
        "every rank has all weights of a module; ncclkv.torch.DataParallel(model) reduces "
        "their gradients",
    ),
}
"""Advice by names of ``torch.nn.parallel`` and ``torch.distributed.fsdp``."""

OF_OPTIMIZERS: Mapping[str, str] = {
    **dict.fromkeys(("DCASGD", "GroupAdaGrad", "LBSGD", "SGLD"), _OWN),
    "ccSGD": "SGD is the same",
    "Updater": "get_updater makes an updater",
}
"""Advice by names of ``mxnet.optimizer``."""

OF_ARGUMENTS: Mapping[str, str] = {
    "lazy_update": "leave it out: gradients are dense. ",
    "param_dict": "set optimizer.lr_mult and optimizer.wd_mult, by key. ",
    **dict.fromkeys(
        ("use_fused_step", "aggregate_num"), "leave it out: whole buckets are updated at once. "
    ),
}
"""Advice by arguments of MXNet's optimizers."""

OTHER_OPS: Mapping[str, str] = {
    **dict.fromkeys(("mean", "average"), "avg"),
    **dict.fromkeys(("add", "plus"), "sum"),
    **dict.fromkeys(("maximum", "amax"), "max"),
    **dict.fromkeys(("minimum", "amin"), "min"),
    **dict.fromkeys(("product", "mul"), "prod"),
}
"""Ops by their names in other libraries."""


def missing(owner: str, name: str, advice: Mapping[str, str], where: Any = None) -> AttributeError:
    """Return the error for a missing attribute, with the advice for a name of another library.

    Parameters
    ----------
    owner : str
        The object, as Python's own error names it.
    name : str
    advice : mapping of str to str
    where : object
        The object, among whose attributes Python looks for a similar name.

    Examples
    --------
    >>> missing("'KVStore' object", "get_type", OF_STORES)
    AttributeError("'KVStore' object has no attribute 'get_type'; read kv.type")
    """
    text = f"{owner} has no attribute {name!r}"
    if name in advice:
        text += f"; {advice[name]}"
    return AttributeError(text, name=name, obj=where)


def optimizer_of_another(given: Any) -> str:
    """Return the text of the error for an optimizer of torch, or its class; else empty.

    Examples
    --------
    >>> optimizer_of_another(3)
    ''
    """
    kind = given if isinstance(given, type) else type(given)
    if not kind.__module__.startswith("torch.optim."):
        return ""
    return (
        f"torch's {kind.__name__} is no optimizer of ncclkv; make one by ncclkv.optimizer.create("
        f"'sgd', learning_rate=0.1), or keep torch's with ncclkv.torch.DataParallel(model)"
    )


def is_of_mxnet(given: Any, package: str = "mxnet") -> bool:
    """Return whether an object's class is of a package of MXNet, or derived from such a class.

    Examples
    --------
    >>> is_of_mxnet(3)
    False
    """
    return any(each.__module__.startswith(f"{package}.") for each in type(given).__mro__)
