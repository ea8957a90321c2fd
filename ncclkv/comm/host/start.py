"""Start over MPI: makes the communicator of all ranks, and checks MPI against the launcher."""

from __future__ import annotations

import sys
from contextlib import closing
from sys import _getframe
from typing import TYPE_CHECKING, Any

from ncclkv import env, notify
from ncclkv.comm import callbacks
from ncclkv.comm.base import Communicator
from ncclkv.comm.diagnosis import crossing
from ncclkv.comm.diagnosis.call_ring import call_site
from ncclkv.comm.host import child, finalize, threads
from ncclkv.comm.host.alone import check_library, check_size
from ncclkv.comm.host.communicator import HostCommunicator
from ncclkv.comm.host.mpi import MpiTransport, no_communicator
from ncclkv.comm.host.mpi_groups import ranks_name
from ncclkv.comm.host.outside_wait import poll_outside
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.errors import CommTimeout, KVStoreError, LaunchError, UsageError
from ncclkv.system import log, watchdog
from ncclkv.tracebacks import public

if TYPE_CHECKING:
    from mpi4py import MPI


_starts_here = False
"""True when this module starts MPI, and not mpi4py or the program."""

# Copies of MPI_COMM_WORLD that a failed creation has begun.
_pending_copies: list[tuple[MPI.Intracomm, MPI.Request]] = []


@public
def world(timeout: float | None = None) -> Communicator:
    """Make a communicator of all ranks of the job, in host memory; collective over them.

    A process that no launcher started together with others needs no MPI.  Inside
    `ncclkv.testing.run_ranks` the ranks are its threads.

    Parameters
    ----------
    timeout : float, optional
        Seconds that a wait for other ranks may take; by default ``NCCLKV_TIMEOUT``, or 300, and
        inside ``run_ranks`` the timeout of ``run_ranks``.

    Raises
    ------
    UsageError
        When `timeout` is not a finite number above 0, or the thread is no rank of a ``run_ranks``
        that runs.
    LaunchError
        When a launcher started several processes, and MPI cannot be loaded or sees fewer.

    Examples
    --------
    >>> import numpy as np, ncclkv
    >>> comm = ncclkv.comm.world()
    >>> sums = np.zeros(3)
    >>> work = comm.allreduce(np.ones(3), sums)
    >>> work.wait()
    >>> bool((sums == comm.size).all())
    True
    """
    callbacks.refuse("world")
    if threads.is_rank():
        return threads.world(None if timeout is None else env.timeout(timeout))
    threads.refuse_other_threads()
    timeout = env.timeout(timeout)
    started = env.launched_size()
    alone = started == 1 if started is not None else not env.launched_without_size()
    # Such a process cannot join its parent's job.
    alone |= env.alone() and child.is_no_rank()
    if alone and "mpi4py.MPI" not in sys.modules:
        check_size(1, "")
        return SoloCommunicator(timeout)
    with watchdog.guard("starting MPI", timeout):
        notify.notify(notify.MPI_BEGINS)
        mpi = _mpi()
        notify.notify(notify.MPI_RUNS)
    comm = mpi.COMM_WORLD
    log.set_process_rank(comm.Get_rank())
    check_size(comm.Get_size(), mpi.Get_library_version())
    return over(comm, timeout)


def over(comm: MPI.Intracomm, timeout: float) -> Communicator:
    """Make a communicator of the ranks of `comm`, separate from its traffic; collective."""
    if comm == _mpi().COMM_NULL:
        raise UsageError(
            "comm is COMM_NULL: this process is not in the communicator; call create() only on its "
            "members"
        )
    if comm.Is_inter():
        raise UsageError(
            "comm is an intercommunicator, which has two groups of ranks; a store has one group: "
            "give comm.Merge()"
        )
    if comm.Get_size() == 1:
        return SoloCommunicator(timeout)
    child.check_fork(comm.Get_rank())
    try:
        own = _copy(comm, timeout)
        try:
            transport = MpiTransport(own, timeout)
            finalize.join(own, timeout)
        except BaseException:
            own.Free()
            raise
    except _mpi().Exception as error:
        where = f"rank {comm.Get_rank()} of {comm.Get_size()}"
        raise no_communicator(where, error) from error
    return HostCommunicator(transport, timeout, share=True)


def _copy(comm: MPI.Intracomm, timeout: float) -> MPI.Intracomm:
    """Duplicate an MPI communicator; waits for all its ranks."""
    # The other ranks' next creation waits for the copy that a failed creation here has begun.
    ours = comm == _mpi().COMM_WORLD
    ranks = ranks_name(comm)
    name = f"{crossing.CREATION}{ranks}" if ranks else ""
    if ours and _pending_copies:
        own, request = _pending_copies.pop()
    else:
        own, request = comm.Idup()
        crossing.creations[name] += 1
    polls = poll_outside(
        f"create() at {call_site(_getframe())}",
        lambda transport: transport.ranks_in(comm) if isinstance(transport, MpiTransport) else (),
        rank=comm.Get_rank(),
        size=comm.Get_size(),
        limit=timeout,
        store=name,
    )
    try:
        with closing(polls):
            for _ in polls:
                if request.Test():
                    return own
        raise CommTimeout(
            f"rank {comm.Get_rank()} of {comm.Get_size()}: waited {timeout:g} s for all ranks to "
            f"create the store; create is collective, and must be called on every rank"
        )
    except KVStoreError:
        if ours:
            _pending_copies.append((own, request))
        else:
            crossing.creations[name] -= 1
        raise


def _mpi() -> Any:
    """Import mpi4py.MPI, and start MPI."""
    if "mpi4py.MPI" not in sys.modules:
        child.check_spawned()
        _import()
    from mpi4py import MPI

    if _starts_here and not MPI.Is_initialized():
        _start()
    return MPI


def _import() -> None:
    """Import mpi4py.MPI without MPI's start, which a wrong library ends the process in."""
    global _starts_here
    try:
        finalize.end_here()
        from mpi4py import rc

        wanted, rc.initialize = rc.initialize, False
        try:
            from mpi4py import MPI  # noqa: F401
        finally:
            rc.initialize = wanted
        _starts_here = wanted in (True, "yes")
    except ImportError as error:
        raise LaunchError(
            f"this job has several ranks, but mpi4py cannot be imported ({error}); "
            f"pip install 'ncclkv[mpi]'"
        ) from error
    except RuntimeError as error:
        raise LaunchError(
            f"this job has several ranks, but mpi4py finds no MPI library ({error}); load your "
            f"site's MPI, or pip install 'ncclkv[mpi]' into this environment"
        ) from error


def _start() -> None:
    """Start MPI as mpi4py does, unless its library cannot join the launcher."""
    from mpi4py import MPI, rc

    check_library(MPI.Get_library_version())
    if rc.threads in (True, "yes"):
        MPI.Init_thread(getattr(MPI, f"THREAD_{rc.thread_level.upper()}"))
    else:
        MPI.Init()
