"""Backends: one table from the names of stores to functions that make their communicators."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from ncclkv import env
from ncclkv.comm.base import Communicator
from ncclkv.comm.diagnosis import dump
from ncclkv.comm.host import start, threads
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.errors import (
    CommError,
    ContractError,
    KVStoreError,
    LaunchError,
    NotSupported,
    SpecMismatch,
    UsageError,
)
from ncclkv.frames import warn
from ncclkv.store.agreement import agree

_log = logging.getLogger("ncclkv")


@contextmanager
def freed_without_store(ranks: Communicator) -> Iterator[None]:
    """Free the communicator if the block fails to make its store."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, (ContractError, CommError)):
            with ranks.lock:
                dump.write(error, ranks.calls, ranks.name)
        if isinstance(error, (UsageError, SpecMismatch, LaunchError)):
            # All ranks raise the same error, so the collective close returns.
            with suppress(KVStoreError):
                ranks.close()
        else:
            ranks.abort(f"{type(error).__name__}: {error}")
        raise


def _alone(name: str, comm: Any, timeout: float | None) -> Communicator:
    """Return a communicator of this process alone."""
    _refuse_comm(name, comm)
    _warn_of_many(name)
    return SoloCommunicator(env.timeout(timeout))


def _warn_of_many(name: str) -> None:
    """Warn that each of several ranks asks for a store of one process."""
    if several := env.several_of_rank_0():
        warn(
            f"create({name!r}) in each of {several} ranks makes {several} independent stores that "
            f"exchange no values; create('dist') makes one store of all ranks"
        )


def _hosts(name: str, comm: Any, timeout: float | None) -> Communicator:
    """Return a communicator of all ranks, or of those of `comm`, which agree on the store."""
    if comm is None:
        ranks = start.world(timeout)
    elif isinstance(comm, Communicator):
        ranks = comm.duplicate(timeout)
    elif hasattr(comm, "Idup"):
        ranks = start.over(comm, env.timeout(timeout))
    else:
        raise UsageError(
            f"comm={comm!r} is not a communicator; give mpi4py's, such as "
            f"MPI.COMM_WORLD.Split(color), or an ncclkv Communicator"
        )
    with freed_without_store(ranks):
        agree(ranks, "create", [f"name={name}"])
    return ranks


def _best(name: str, comm: Any, timeout: float | None) -> Communicator:
    """Return all ranks over NCCL if possible; else in host memory, with a line in the log."""
    ranks = _hosts(name, comm, timeout)
    if threads.are_ranks_of(ranks):
        return ranks
    # Only here and below: stores in host memory start sooner without the modules of NCCL.
    from ncclkv.comm.nccl import start as gpus
    from ncclkv.comm.nccl.communicator import NcclCommunicator
    from ncclkv.comm.nccl.discovery import launch_problem

    if isinstance(ranks, NcclCommunicator):
        return ranks
    with freed_without_store(ranks):
        infos = gpus.survey(ranks)
        problem = launch_problem(infos)
        if problem is None:
            return gpus.launch(ranks, infos)
    ranks.not_on_gpus = problem
    if ranks.size > 1 and ranks.rank == 0:
        _log_once(
            f"ncclkv: dist over {ranks.size} ranks in host memory, not on GPUs; "
            f"kv.explain_plan() shows why"
        )
        _log.info("dist is in host memory (%s): %s", ranks.name, problem)
    return ranks


def _nccl(name: str, comm: Any, timeout: float | None) -> Communicator:
    """Return all ranks, or those of `comm`, over NCCL."""
    from ncclkv.comm.nccl import start as gpus
    from ncclkv.comm.nccl.communicator import NcclCommunicator

    ranks = _hosts(name, comm, timeout)
    if isinstance(ranks, NcclCommunicator):
        return ranks
    try:
        with freed_without_store(ranks):
            if threads.are_ranks_of(ranks):
                raise LaunchError(
                    f"the ranks of run_ranks are threads in host memory, and NCCL needs a process "
                    f"for each rank: mpirun -n {ranks.size} python SCRIPT"
                )
            return gpus.launch(ranks)
    except LaunchError as error:
        raise LaunchError(
            f"create({name!r}): {error}. create('dist_sync') keeps values in host memory, and "
            f"needs no GPU"
        ) from error


def _device(name: str, comm: Any, timeout: float | None) -> Communicator:
    """Return a communicator of this process alone, with its GPU's memory if it has a GPU."""
    from ncclkv.comm.nccl import start as gpus
    from ncclkv.comm.nccl.discovery import launch_problem

    process = _alone(name, comm, timeout)
    infos = gpus.survey(process)
    problem = launch_problem(infos)
    if problem is None:
        return gpus.launch(process, infos)
    process.not_on_gpus = problem
    if infos[0].devices:
        _log_once(f"ncclkv: {name} in host memory, not in a GPU's: {problem}")
    return process


@cache
def _log_once(line: str) -> None:
    """Log a line, the first time in a process."""
    _log.warning(line)


def _threads(name: str, comm: Any, timeout: float | None) -> Communicator:
    """Return a communicator of the ranks that are threads of `testing.run_ranks`."""
    _refuse_comm(name, comm)
    if not threads.is_rank():
        _warn_of_many(name)
    return threads.world(timeout)


def _asynchronous(name: str, comm: Any, timeout: float | None) -> Communicator:
    """Refuse: collectives are synchronous."""
    raise NotSupported(
        f"create({name!r}): asynchronous pushes need a server, and collectives are synchronous; "
        f"create('dist_sync') sums over all ranks"
    )


def _refuse_comm(name: str, comm: Any) -> None:
    """Refuse a communicator where none is used."""
    if comm is not None:
        raise UsageError(f"create({name!r}) takes no comm; create('dist_sync', comm=...) does")


REFUSED = ("dist_async", "dist_async_device", "dist_device_async")
"""Names of MXNet's stores that are known, and not supported."""

ALONE = ("local", "local_update_cpu", "local_allreduce_cpu", "device", "local_allreduce_device")
"""Names of stores of this process alone, the last two in its GPU's memory."""

RANKS: dict[str, Callable[[str, Any, float | None], Communicator]] = {
    **dict.fromkeys(ALONE[:3], _alone),
    **dict.fromkeys(ALONE[3:], _device),
    "dist_sync": _hosts,
    "dist": _best,
    "threads": _threads,
    **dict.fromkeys(("nccl", "dist_device_sync", "dist_sync_device"), _nccl),
    **dict.fromkeys(REFUSED, _asynchronous),
}
