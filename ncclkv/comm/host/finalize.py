"""Finalize: the end of MPI, after a barrier with a deadline, which ``MPI_Finalize`` lacks.

A rank whose program failed waits for a bounded time, then ends without ``MPI_Finalize``.  Any other
rank waits until all ranks have arrived, and names the late ranks at each deadline.

The end runs at exit, and before the program's own ``MPI.Finalize()``, by an attribute of
``MPI_COMM_SELF``.  Each rank sends a notice to each other rank, on a transport that stays open
until then (`ncclkv.comm.host.final_barrier`).  A late rank is a rank whose notice is missing.
`ncclkv.comm.host.exit_wait` polls the notices, the processes and the deadlines.

After a failure only ranks of one machine exchange notices, because a second message to a dead
process of another machine can crash MPICH.  A rank that gives up skips ``MPI_Finalize`` and the
exit hooks of C (``on_exit``), so its exit code is its own.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from typing import TYPE_CHECKING, Any

from ncclkv import env, notify
from ncclkv.comm.diagnosis import farewells
from ncclkv.comm.host.exit_wait import PATIENCE, ExitWait
from ncclkv.comm.host.final_barrier import FinalBarrier
from ncclkv.comm.host.mpi import leave_all
from ncclkv.system import abort, watchdog

if TYPE_CHECKING:
    from mpi4py import MPI

_process = os.getpid()

_barriers: list[FinalBarrier] = []

_ends_here = False
"""True when this module ends MPI, and not mpi4py or the program."""

_over = False
"""True once this rank has waited for the other ranks at its end."""


def end_here() -> None:
    """Make this module end MPI, unless MPI has started already or the user will end it.

    mpi4py would also end MPI in a forked child, which then waits for ever for the other ranks.
    """
    global _ends_here
    import mpi4py

    if "mpi4py.MPI" not in sys.modules and mpi4py.rc.finalize is not False:
        mpi4py.rc.finalize = False
        _ends_here = True


def join(comm: MPI.Intracomm, timeout: float) -> None:
    """Add a final barrier of the ranks of `comm`, unless an earlier one covers them; collective.

    The ranks of a new store have overcome an earlier failure, if they are not fewer than before.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    timeout : float
        Seconds after which the ranks that are late at the end are named.
    """
    if comm.Get_size() >= max((each.size for each in _barriers), default=0):
        farewells.forgive()
    if any(each.covers(comm) for each in _barriers):
        return
    with watchdog.guard("making an MPI communicator", timeout):
        _barriers.append(FinalBarrier(comm.Dup(), timeout))
    if len(_barriers) == 1:
        _watch_finalize()


@atexit.register
def end() -> None:
    """Leave all stores, and end MPI, or this rank without it, at the end of the process."""
    if os.getpid() != _process:  # a forked child is not a rank
        return
    leave_all(farewells.own())
    mpi = abort.running_mpi()
    if mpi is None:
        return
    if not _all_passed():
        _end_without_finalize(mpi)
    elif _ends_here:
        with watchdog.guard("MPI_Finalize", _timeout()):
            mpi.Finalize()


def _all_passed() -> bool:
    """Wait for the other ranks, at the first call; return whether MPI can be ended.

    If ``NCCLKV_EXIT_TIMEOUT`` passes, this function ends the job.
    """
    global _over
    if _over or not _barriers:
        return True
    _over = True
    # Before the other ranks fail because of this rank, and end the job.
    code = abort.exit_code()
    notify.notify(notify.EXITS, notify.UNKNOWN if code is None else str(code))
    exit_wait = ExitWait(_barriers, farewells.failure() or abort.bad_end())
    reason = exit_wait.wait()
    if reason:
        abort.announce(reason)
    if exit_wait.ends_job:
        abort.end_job()
    return not reason


def _timeout() -> float:
    """Return the longest timeout of all stores; without a store, `PATIENCE`."""
    return max((each.timeout for each in _barriers), default=PATIENCE)


def _end_without_finalize(mpi: Any) -> None:
    """Make this process end soon, with its own exit code, and without ``MPI_Finalize``.

    This function reads the exit code of `sys.exit` only.  With a code, the job is aborted at the
    very end, because mpirun reports the code of the abort.  Without a code the process exits, and
    the launcher ends the others.  ``ncclkv run`` receives each rank's code, except in an abort.
    """
    abort.give_time_to_read()
    code = abort.exit_code()
    if (code and not env.under_runner()) or not _ends_here:
        # mpi4py then calls MPI_Abort at the very end of Python, in place of MPI_Finalize.
        mpi._set_abort_status(code or abort.FAILURE)
    _skip_destructors()
    watchdog.arm("the end of a rank that failed", PATIENCE)


def _skip_destructors() -> None:
    """Skip the exit functions of C libraries: those of MPI may wait for other ranks."""
    library = ctypes.CDLL(None)
    on_exit = getattr(library, "on_exit", None)  # of glibc; keeps the exit code
    if on_exit is not None:
        on_exit(ctypes.cast(library._exit, ctypes.c_void_p), None)


def _watch_finalize() -> None:
    """Enter the final barriers also when the program calls ``MPI.Finalize()`` itself.

    At its end MPI first deletes the attributes of ``MPI_COMM_SELF``.
    """
    from mpi4py import MPI

    def before(comm: MPI.Comm, key: int, value: object) -> None:
        if not _all_passed():
            abort.end_job()

    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=before), None)
