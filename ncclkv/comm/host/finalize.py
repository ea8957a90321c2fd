"""Finalize: the end of MPI, after a barrier with a deadline, which ``MPI_Finalize`` lacks.

A rank whose program failed waits a bounded time, and then ends without ``MPI_Finalize``.  Any other
rank waits as long as the late ranks take, and names them at each deadline.
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any
from weakref import ref

from ncclkv import env, notify
from ncclkv.comm.host.exit_wait import PATIENCE, ExitWait
from ncclkv.comm.host.final_barrier import FinalBarrier
from ncclkv.errors import CommError, ContractError
from ncclkv.system import abort, watchdog

if TYPE_CHECKING:
    from mpi4py import MPI

_barriers: list[FinalBarrier] = []
_failure: tuple[ref[BaseException], str] | None = None

_ends_here = False
"""True when this module ends MPI, and not mpi4py or the program."""

_over = False
"""True once this rank has met the others at its end, or given up."""


def end_here() -> None:
    """Have this module end MPI, unless it has started already or the user will end it.

    mpi4py would end it in a forked child too, which then waits for ever for the other ranks.
    """
    global _ends_here
    import mpi4py

    if "mpi4py.MPI" not in sys.modules and mpi4py.rc.finalize is not False:
        mpi4py.rc.finalize = False
        _ends_here = True


def join(comm: MPI.Intracomm, timeout: float) -> None:
    """Have the ranks of `comm` meet before MPI ends; collective over them.

    Ranks that join once more have overcome a failure noted earlier, when they are as many as ever.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    timeout : float
        Seconds after which ranks that are late at the end are named.
    """
    global _failure
    if comm.Get_size() >= max((len(each.members) for each in _barriers), default=0):
        _failure = None
    if any(each.covers(comm) for each in _barriers):
        return
    with watchdog.guard("making an MPI communicator", timeout):
        _barriers.append(FinalBarrier(comm.Dup(), timeout))
    if len(_barriers) == 1:
        _watch_finalize()


def failed(error: BaseException) -> None:
    """Note an error after which other ranks may never come to the end of MPI."""
    global _failure
    if isinstance(error, (ContractError, CommError)):
        # The error itself would keep the store alive, by the frames that it passed.
        _failure = ref(error), abort.reason_of(error)


def forgive(error: BaseException) -> None:
    """Drop the note of `error`: the rank that it names has ended as it should."""
    global _failure
    if _failure is not None and _failure[0]() is error:
        _failure = None


def farewell() -> str:
    """Return what this rank tells those who may wait for it at the end of its process."""
    words = "its process ended without closing the store"
    if _failure is not None:
        return f"{words}, after {_failure[1]}"
    reason = abort.bad_end()
    return f"{words}, by {reason}" if reason else words


def end() -> None:
    """End MPI, or this rank without it, at the end of the process."""
    mpi = abort.running_mpi()
    if mpi is None:
        return
    if not _meet():
        _end_without_finalize(mpi)
    elif _ends_here:
        with watchdog.guard("MPI_Finalize", _timeout()):
            mpi.Finalize()


def _meet() -> bool:
    """Wait for the other ranks, the first time; return whether MPI can be ended.

    Where ``NCCLKV_EXIT_TIMEOUT`` passes, the job is ended here.
    """
    global _over
    if _over or not _barriers:
        return True
    _over = True
    if _failure is None and (code := abort.exit_code()):
        # Before the others fail because of this rank, and end the job.
        notify.notify(notify.EXITS, str(code))
    meeting = ExitWait(_barriers, _failure[1] if _failure is not None else abort.bad_end())
    reason = meeting.wait()
    if reason:
        abort.announce(reason)
    if meeting.ends_job:
        abort.end_job()
    return not reason


def _timeout() -> float:
    """The longest timeout of all stores; that of MPI's own end without any."""
    return max((each.timeout for each in _barriers), default=PATIENCE)


def _end_without_finalize(mpi: Any) -> None:
    """See that this process ends soon, with its own exit code, and without ``MPI_Finalize``.

    The exit code is not known here, unless it went through `sys.exit`.  With it the job is aborted
    last of all, since mpirun reports that code.  Otherwise the process just exits, and the launcher
    ends the others.  ``ncclkv run`` learns each rank's code, but not where mpirun is told to abort.
    """
    abort.give_time_to_read()
    code = abort.exit_code()
    if (code and not env.under_runner()) or not _ends_here:
        # mpi4py then calls MPI_Abort at the very end of Python, in place of MPI_Finalize.
        mpi._set_abort_status(code or abort.FAILURE)
    _skip_destructors()
    watchdog.arm("the end of a rank that failed", PATIENCE)


def _skip_destructors() -> None:
    """Leave out what C libraries do at exit, where MPI's may wait for other ranks."""
    library = ctypes.CDLL(None)
    on_exit = getattr(library, "on_exit", None)  # glibc's; it hands the exit code on
    if on_exit is not None:
        on_exit(ctypes.cast(library._exit, ctypes.c_void_p), None)


def _watch_finalize() -> None:
    """Meet the other ranks also where the program calls ``MPI.Finalize()`` itself.

    MPI deletes the attributes of ``MPI_COMM_SELF`` first of all when it ends.
    """
    from mpi4py import MPI

    def before(comm: MPI.Comm, key: int, value: object) -> None:
        if not _meet():
            abort.end_job()

    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=before), None)
