"""Binding of NCCL through ctypes.

By default a communicator blocks: each call returns when NCCL has completed it, so a capture of the
caller's thread records it.  ``NCCL_COMM_BLOCKING=0`` overrides the default.  Then a call returns
``ncclInProgress``, and the binding polls the communicator until the call is complete, with a
deadline.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ncclkv import concurrency, env
from ncclkv.comm.nccl import deadlines
from ncclkv.comm.nccl.binding import Handle, Look, connect, version_text
from ncclkv.comm.nccl.deadlines import Deadline
from ncclkv.comm.nccl.library import Config, NcclLibrary, UniqueId, load
from ncclkv.errors import CommAborted, CommError, KVStoreError, LaunchError

_SUCCESS, _IN_PROGRESS = 0, 7

_RESULTS = {
    1: "ncclUnhandledCudaError",
    2: "ncclSystemError",
    3: "ncclInternalError",
    4: "ncclInvalidArgument",
    5: "ncclInvalidUsage",
    6: "ncclRemoteError",
    7: "ncclInProgress",
    8: "ncclTimeout",
}
"""NCCL's names of its codes (``nccl.h``, ncclResult_t)."""

_NOT_BLOCKING = (
    "its communicators do not block: a thread of NCCL puts collectives on the stream, and a "
    "capture of the caller's thread may miss them; unset NCCL_COMM_BLOCKING on every rank, also in "
    "nccl.conf"
)


class CtypesBinding:
    """NCCL's functions, called through ctypes without Python's lock.

    A handle is the address of a communicator, without a destructor: `destroy` or `abort` frees it.

    Parameters
    ----------
    device : int, optional
        Device of the communicators; by default the current device.
    timeout : float
        Seconds for all ranks to join in `create`, `connect` and `destroy`, and for every other call
        of a communicator that does not block.
    blocking : bool
        Whether communicators block, unless ``NCCL_COMM_BLOCKING`` is set.
    max_ctas : int, optional
        Maximum count of blocks of a kernel, unless ``NCCL_MAX_CTAS`` is set; by default NCCL
        chooses.
    library : NcclLibrary, optional
        By default that of `ncclkv.comm.nccl.library.load`.

    Raises
    ------
    LaunchError
        When there is no libnccl, or libnccl is too old.
    """

    name = "NCCL"

    def __init__(
        self,
        device: int | None = None,
        timeout: float = 300.0,
        *,
        blocking: bool = True,
        max_ctas: int | None = None,
        library: NcclLibrary | None = None,
    ) -> None:
        self.library = load() if library is None else library
        self._functions = self.library.declare()
        self._device = device
        self._timeout = timeout
        self._blocking, self._max_ctas = blocking, max_ctas
        self._config = Config(blocking, max_ctas)
        self._group = _Group()
        self.uncaptured = ""
        # Prepared once, because each launch of a bucket calls them.
        self.all_reduce = self._collective("ncclAllReduce")
        self.reduce = self._collective("ncclReduce")
        self.broadcast = self._collective("ncclBroadcast")
        self.reduce_scatter = self._collective("ncclReduceScatter")
        self.all_gather = self._collective("ncclAllGather")
        self.send = self._collective("ncclSend")
        self.receive = self._collective("ncclRecv")

    def version(self) -> int:
        return self.library.version

    def unique_id(self) -> bytes:
        identity = UniqueId()
        self._check("ncclGetUniqueId", self._functions.ncclGetUniqueId(ctypes.byref(identity)))
        return bytes(identity)

    def another(self, timeout: float) -> CtypesBinding:
        return CtypesBinding(
            self._device,
            timeout,
            blocking=self._blocking,
            max_ctas=self._max_ctas,
            library=self.library,
        )

    def create(self, size: int, unique_id: bytes, rank: int, look: Look) -> Handle:
        operation = "ncclCommInitRankConfig"
        comm = ctypes.c_void_p()
        try:
            # In a new thread: a creation that fails at once leaves the group of its thread open.  A
            # creation that hangs is not aborted: NCCL may free memory that the thread uses.
            code = self._bounded(
                operation,
                self._functions.ncclCommInitRankConfig,
                ctypes.byref(comm),
                size,
                UniqueId.from_buffer_copy(unique_id),
                rank,
                ctypes.byref(self._config),
                look=look,
            )
            if not self._blocks():
                self.uncaptured = _NOT_BLOCKING
            self._finish_or_abort(operation, comm.value, code, look)
        except CommAborted as error:
            raise LaunchError(str(error)) from error
        return comm.value

    def _blocks(self) -> bool:
        """Return whether communicators block, unless nccl.conf says otherwise: see `_settle`."""
        chosen = env.communicators_block()
        return self._blocking if chosen is None else chosen

    def connect(
        self,
        comm: Handle,
        peers: Sequence[int],
        scratch: tuple[int, int],
        stream: int,
        look: Look | None = None,
    ) -> None:
        self._bounded("ncclGroupEnd", connect, self, comm, peers, scratch, stream, look=look)

    def destroy(self, comm: Handle, look: Look | None = None) -> None:
        # Finalize waits for the other ranks and returns errors; destroy returns none of them.
        code = self._bounded("ncclCommFinalize", self._functions.ncclCommFinalize, comm, look=look)
        self._finish_or_abort("ncclCommFinalize", comm, code, look)
        code = self._bounded("ncclCommDestroy", self._functions.ncclCommDestroy, comm, look=look)
        self._check("ncclCommDestroy", code)

    def abort(self, comm: Handle) -> None:
        call = self._functions.ncclCommAbort
        code = self._bounded("ncclCommAbort", call, comm, seconds=deadlines.ABORT_SECONDS)
        self._check("ncclCommAbort", code)

    def async_error(self, comm: Handle) -> str | None:
        code = self._state(comm)
        return None if code in (_SUCCESS, _IN_PROGRESS) else self._text(code)

    def group_start(self) -> None:
        self._check("ncclGroupStart", self._functions.ncclGroupStart())
        self._group.depth += 1

    def group_end(self) -> None:
        group = self._group
        group.depth = max(0, group.depth - 1)
        code = self._functions.ncclGroupEnd()
        comms = [] if group.depth else group.take()
        if code == _IN_PROGRESS:
            for comm in comms:
                self._settle("ncclGroupEnd", comm)
        else:
            self._check("ncclGroupEnd", code)

    def _collective(self, operation: str) -> Callable[..., None]:
        """Return a collective's function, which passes the communicator just before the stream."""
        function, group = getattr(self._functions, operation), self._group

        def enqueue(comm: Handle, *arguments: int) -> None:
            code = function(*arguments[:-1], comm, arguments[-1])
            if code or group.depth:
                self._finish(operation, comm, code)

        return enqueue

    def _finish(self, operation: str, comm: Handle, code: int, look: Look | None = None) -> None:
        """Complete a call: raise its error, leave it to the open group, or wait for NCCL."""
        if self._group.depth and code in (_SUCCESS, _IN_PROGRESS):
            self._group.comms.append(comm)
        elif code == _IN_PROGRESS:
            self._settle(operation, comm, look)
        else:
            self._check(operation, code)

    def _finish_or_abort(
        self, operation: str, comm: Handle, code: int, look: Look | None = None
    ) -> None:
        """Complete a call of `create` or `destroy`; abort the communicator if the call failed.

        Nothing else would free the communicator then.
        """
        try:
            self._finish(operation, comm, code, look)
        except (CommError, KeyboardInterrupt):
            if comm is not None:
                with suppress(KVStoreError):  # the first error has the cause
                    self.abort(comm)
            raise

    def _settle(self, operation: str, comm: Handle, look: Look | None = None) -> None:
        """Wait until NCCL has completed the last call, as NCCL requires before the next call."""
        self.uncaptured = _NOT_BLOCKING
        deadline = Deadline(self._timeout)
        while (code := self._state(comm)) == _IN_PROGRESS:
            # Before a pause, in which the process may be stopped: what NCCL has done counts.
            if deadline.late():
                raise deadlines.timeout_error(self._named(operation), self._timeout)
            if deadline.is_check_due() and look is not None:
                look()
        self._check(operation, code)

    def _state(self, comm: Handle) -> int:
        """Return the code of the communicator's last call, or of its asynchronous error."""
        state = ctypes.c_int()
        code = self._functions.ncclCommGetAsyncError(comm, ctypes.byref(state))
        return code or state.value

    def _bounded(
        self,
        operation: str,
        function: Callable[..., Any],
        *arguments: Any,
        seconds: float | None = None,
        look: Look | None = None,
    ) -> Any:
        """Make a call that waits for other ranks, with a deadline."""
        return deadlines.call_with_timeout(
            self._named(operation),
            partial(self._on_device, function, *arguments),
            self._timeout if seconds is None else seconds,
            look,
        )

    def _on_device(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on the communicator's device, in a thread that may have another."""
        if self._device is not None:
            import cupy

            try:
                cupy.cuda.Device(self._device).use()
            except cupy.cuda.runtime.CUDARuntimeError as error:
                raise CommAborted(f"device {self._device} cannot be used: {error}") from error
        return function(*arguments)

    def _check(self, operation: str, code: int) -> None:
        """Raise if a call failed."""
        if code not in (_SUCCESS, _IN_PROGRESS):
            raise CommAborted(f"{self._named(operation)} failed: {self._text(code)}")

    def _named(self, operation: str) -> str:
        """Return the first words of an error text about a call of NCCL."""
        return f"NCCL {version_text(self.library.version)}: {operation}"

    def _text(self, code: int) -> str:
        """Return a code's name and text, and NCCL's last message or advice to get a message."""
        words = self._functions.ncclGetErrorString(code) or b""
        last = self._functions.ncclGetLastError(None) or b""
        text = f"{_RESULTS.get(code, f'code {code}')} ({words.decode(errors='replace')})"
        if last:
            return f"{text}; NCCL's last message: {last.decode(errors='replace')}"
        return f"{text}; run again with NCCL_DEBUG=WARN to get NCCL's reason"


class _Group(concurrency.local):
    """Open group of calls; NCCL has a group for each thread.

    Attributes
    ----------
    depth : int
        Count of starts without an end.
    comms : list of Handle
        The communicators of the calls in the group.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.comms: list[Handle] = []

    def take(self) -> list[Handle]:
        """Return the communicators, and clear the list."""
        comms, self.comms = self.comms, []
        return comms
