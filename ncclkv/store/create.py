"""From a name to a store: one table."""

from __future__ import annotations

import difflib
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from ncclkv import env
from ncclkv.comm import threads
from ncclkv.comm.base import Communicator
from ncclkv.comm.host import launch
from ncclkv.comm.nccl import launch as gpus
from ncclkv.comm.nccl.communicator import NcclCommunicator
from ncclkv.comm.nccl.facts import trouble
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.errors import KVStoreError, LaunchError, NotSupported, SpecMismatch, UsageError
from ncclkv.store.agreement import agree
from ncclkv.store.kvstore import KVStore
from ncclkv.store.plugin import BUILT_IN, KVStoreBase
from ncclkv.table.cost import DEFAULT_BUCKET_BYTES

_log = logging.getLogger("ncclkv")


def create(
    name: str = "local",
    *,
    comm: Any = None,
    update_on: str = "every_rank",
    root: int = 0,
    bucket_bytes: int | str = DEFAULT_BUCKET_BYTES,
    timeout: float | None = None,
) -> Any:
    """Create a store; collective over its ranks.

    ===========================================  =================================================
    name, in any case                            ranks and memory
    ===========================================  =================================================
    local, local_update_cpu,                     this process alone; host memory
    local_allreduce_cpu
    device, local_allreduce_device               this process alone; its GPU's memory, if it has one
    nccl, dist_device_sync, dist_sync_device     all ranks; GPU memory, over NCCL
    dist_sync                                    all ranks; host memory
    dist                                         all ranks; as ``nccl`` when every rank has a GPU of
                                                 its own, else as ``dist_sync``
    threads                                      the ranks of `ncclkv.testing.run_ranks`
    a class registered by KVStoreBase.register   its own; it takes no options
    dist_async, dist_async_device,               `NotSupported`: collectives are synchronous
    dist_device_async
    ===========================================  =================================================

    Parameters
    ----------
    name : str
    comm : mpi4py.MPI.Intracomm or Communicator, optional
        The ranks of a ``dist`` store; by default all of the job.  The store talks on a communicator
        of its own over the same ranks.
    update_on : {"every_rank", "root"}
        Where updaters run: on every rank with the same sum, or on one rank whose values are
        broadcast by the next pull.
    root : int
        That rank.
    bucket_bytes : int or "auto"
        Keys share collectives up to so many bytes; 0: each key has its own.  ``"auto"``: the ranks
        measure for about a second what collectives take, and choose a power of two from 1 to 64 MiB
        at which little of it is latency; one rank keeps the default, 25 MiB.  ``explain_plan()``
        and ``repr`` show what was chosen.
    timeout : float, optional
        Seconds that a wait for other ranks may take.  By default those of `comm`, when that is a
        Communicator, and of ``run_ranks`` for ``threads``; else ``NCCLKV_TIMEOUT``, or 300.

    Returns
    -------
    KVStore
        Or an instance of a registered class.

    Raises
    ------
    UsageError
        When an argument is unknown or out of range.
    LaunchError
        When the job was not started as the store needs, or has not the GPUs it needs.
    SpecMismatch
        On every rank, when ranks ask for different stores.

    Examples
    --------
    >>> import ncclkv
    >>> ncclkv.create("loacl")
    Traceback (most recent call last):
        ...
    ncclkv.errors.UsageError: unknown store 'loacl'; did you mean 'local'? The names are device, \
dist, dist_async, dist_async_device, dist_device_async, dist_device_sync, dist_sync, \
dist_sync_device, local, local_allreduce_cpu, local_allreduce_device, local_update_cpu, nccl, \
threads
    """
    if not isinstance(name, str):
        raise UsageError(f"a store's name is a str, not {name!r}")
    lower = name.lower()
    if lower in KVStoreBase.kv_registry:
        _refuse_options(
            lower,
            comm=comm,
            update_on=update_on,
            root=root,
            bucket_bytes=bucket_bytes,
            timeout=timeout,
        )
        return KVStoreBase.kv_registry[lower]()
    if lower not in _STORES:
        raise UsageError(_unknown(name))
    ranks = _STORES[lower](lower, comm, None if timeout is None else env.timeout(timeout))
    with _freed_without_store(ranks):
        return KVStore(lower, ranks, update_on=update_on, root=root, bucket_bytes=bucket_bytes)


@contextmanager
def _freed_without_store(ranks: Communicator) -> Iterator[None]:
    """Free what a store would talk on, when there will be none."""
    try:
        yield
    except (UsageError, SpecMismatch, LaunchError):
        # All ranks have found the same.
        with suppress(KVStoreError):
            ranks.close()
        raise
    except BaseException as error:
        ranks.abort(f"{type(error).__name__}: {error}")
        raise


def _refuse_options(name: str, **options: Any) -> None:
    """Refuse options of a registered class, which is called without arguments as in MXNet."""
    known = inspect.signature(create).parameters
    given = [option for option, value in options.items() if value != known[option].default]
    if given:
        raise UsageError(
            f"create({name!r}) makes an object of a registered class, which takes no options, but "
            f"was given {', '.join(given)}; set them on the object"
        )


def _unknown(name: str) -> str:
    """What to say of a name that is not known."""
    names = sorted({*_STORES, *KVStoreBase.kv_registry})
    close = difflib.get_close_matches(name.lower(), names, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown store {name!r}; {hint}The names are {', '.join(names)}"


def _alone(name: str, comm: Any, timeout: float | None) -> Communicator:
    """The process by itself, whatever was started beside it."""
    _refuse_comm(name, comm)
    _warn_of_many(name)
    return SoloCommunicator(env.timeout(timeout))


def _warn_of_many(name: str) -> None:
    """Say that a store of one process was asked for in each of several."""
    started = env.launched_size() or 1
    if started > 1 and env.launched_rank() == 0:
        warnings.warn(
            f"create({name!r}) in each of {started} ranks makes {started} independent stores that "
            f"never exchange anything; create('dist') makes one of all ranks",
            stacklevel=4,
        )


def _hosts(name: str, comm: Any, timeout: float | None) -> Communicator:
    """All ranks, or those of `comm`, who all have asked for this store."""
    ranks = _over(comm, timeout)
    with _freed_without_store(ranks):
        agree(ranks, "create", [f"name={name}"])
    return ranks


def _over(comm: Any, timeout: float | None) -> Communicator:
    """All ranks, or those of `comm`."""
    if comm is None:
        return launch.world(timeout)
    if isinstance(comm, Communicator):
        return comm.duplicate(timeout)
    if not hasattr(comm, "Idup"):
        raise UsageError(
            f"comm={comm!r} is not a communicator; give an mpi4py one, such as "
            f"MPI.COMM_WORLD.Split(color), or an ncclkv Communicator"
        )
    return launch.over(comm, env.timeout(timeout))


def _best(name: str, comm: Any, timeout: float | None) -> Communicator:
    """All ranks, on the best that there is; one line says which that was."""
    ranks = _hosts(name, comm, timeout)
    if isinstance(ranks, NcclCommunicator):
        return ranks
    with _freed_without_store(ranks):
        facts = gpus.survey(ranks)
        problem = trouble(facts)
        if problem is None:
            return gpus.launch(ranks, facts)
    if ranks.size > 1 and ranks.rank == 0:
        _say_once(
            f"ncclkv: dist over {ranks.size} ranks in host memory ({ranks.name}), not over NCCL: "
            f"{problem}"
        )
    return ranks


def _nccl(name: str, comm: Any, timeout: float | None) -> Communicator:
    """All ranks, or those of `comm`, in the memory of their GPUs."""
    ranks = _hosts(name, comm, timeout)
    if isinstance(ranks, NcclCommunicator):
        return ranks
    try:
        with _freed_without_store(ranks):
            return gpus.launch(ranks)
    except LaunchError as error:
        raise LaunchError(
            f"create({name!r}): {error}. create('dist_sync') keeps values in host memory, on any "
            f"machine"
        ) from error


def _device(name: str, comm: Any, timeout: float | None) -> Communicator:
    """The process by itself, in the memory of its GPU if it has one."""
    process = _alone(name, comm, timeout)
    facts = gpus.survey(process)
    problem = trouble(facts)
    if problem is None:
        return gpus.launch(process, facts)
    if facts[0].devices:
        _say_once(f"ncclkv: {name} in host memory, not in a GPU's: {problem}")
    return process


@cache
def _say_once(line: str) -> None:
    """Log a line, the first time in a process."""
    _log.warning(line)


def _threads(name: str, comm: Any, timeout: float | None) -> Communicator:
    """The ranks that are threads of `testing.run_ranks`."""
    _refuse_comm(name, comm)
    if not threads.is_rank():
        _warn_of_many(name)
    return threads.world(timeout)


def _asynchronous(name: str, comm: Any, timeout: float | None) -> Communicator:
    """Say why not."""
    raise NotSupported(
        f"create({name!r}): pushes that are applied rank by rank need a server, and collectives "
        f"are synchronous; create('dist_sync') sums over all ranks"
    )


def _refuse_comm(name: str, comm: Any) -> None:
    """Refuse a communicator where none is used."""
    if comm is not None:
        raise UsageError(f"create({name!r}) takes no comm; create('dist_sync', comm=...) does")


_STORES: dict[str, Callable[[str, Any, float | None], Communicator]] = {
    **dict.fromkeys(
        (
            "local",
            "local_update_cpu",
            "local_allreduce_cpu",
        ),
        _alone,
    ),
    **dict.fromkeys(("device", "local_allreduce_device"), _device),
    "dist_sync": _hosts,
    "dist": _best,
    "threads": _threads,
    **dict.fromkeys(("nccl", "dist_device_sync", "dist_sync_device"), _nccl),
    **dict.fromkeys(("dist_async", "dist_async_device", "dist_device_async"), _asynchronous),
}

BUILT_IN.update(_STORES)
