"""NCCL through nccl4py, which can create a communicator without blocking.

Its communicators return from every call before it is done, and must be asked until it is; so each
wait here has a deadline, and what it waited for can be aborted safely.  Of nccl4py the low layer
alone is used: raw pointers, neither other array libraries nor ``cuda-bindings``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from typing import Any

from ncclkv.comm.nccl import bounded
from ncclkv.comm.nccl.binding import Handle, version_text
from ncclkv.comm.nccl.waiting import Deadline
from ncclkv.errors import CommAborted, CommError, KVStoreError, LaunchError

SERIES = "0.6"
"""Of nccl4py, whose interface changes from one to the next."""

_IN_PROGRESS = 7

_ADVICE = "pip install 'ncclkv[nccl4py]', or set NCCLKV_NCCL_BINDING=cupy on every rank"


def installed() -> bool:
    """Tell whether nccl4py is there in the series that this binding is for; it is not imported."""
    version = _installed_version()
    return version is not None and version.startswith(f"{SERIES}.")


class Nccl4pyBinding:
    """The functions of ``nccl.bindings.nccl``.

    Parameters
    ----------
    device : int, optional
        The device of the communicators to be made; by default the current one.
    timeout : float
        Seconds for all ranks to come to `create` and to `destroy`, and for NCCL to start what any
        other call asks for.

    Raises
    ------
    LaunchError
        When nccl4py, CuPy or libnccl is missing.
    """

    name = "nccl4py"
    uncaptured = (
        "its communicators put a collective on the stream from a thread of NCCL's own, which a "
        "capture of the caller's thread need not take in; set NCCLKV_NCCL_BINDING=cupy on every "
        "rank"
    )

    def __init__(self, device: int | None = None, timeout: float = 300.0) -> None:
        self._nccl, self._cuda = _import()
        self._errors = (self._nccl.NCCLError, ValueError, self._cuda.runtime.CUDARuntimeError)
        self._device = device
        self._timeout = timeout
        self._depth = 0
        self._grouped: list[Handle] = []

    def version(self) -> int:
        return int(self._call("ncclGetVersion", self._nccl.get_version))

    def unique_id(self) -> bytes:
        return bytes(self._call("ncclGetUniqueId", self._nccl.get_unique_id))

    def create(self, size: int, unique_id: bytes, rank: int, look: Callable[[], None]) -> Handle:
        operation = "ncclCommInitRankConfig"

        def begin() -> Handle:
            if self._device is not None:
                self._cuda.Device(self._device).use()
            config = self._nccl.Config()
            config.blocking = 0
            identity = self._nccl.UniqueId.from_buffer(unique_id)
            return self._nccl.comm_init_rank_config(size, identity, rank, config)

        try:
            # In a thread: NCCL_COMM_BLOCKING=1 wins over the config, and a creation that fails at
            # once leaves NCCL's group of its thread open.
            comm = self._bounded(operation, begin)
            self._settle_or_abort(operation, comm, look)
        except CommAborted as error:
            raise LaunchError(str(error)) from error
        return comm

    def connect(
        self, comm: Handle, peers: Sequence[int], room: tuple[int, int], stream: int
    ) -> None:
        self._bounded("ncclGroupEnd", partial(bounded.connect, self, comm, peers, room, stream))

    def destroy(self, comm: Handle) -> None:
        operation = "ncclCommFinalize"
        self._bounded(operation, lambda: self._nccl.comm_finalize(comm))
        self._settle_or_abort(operation, comm)
        self._bounded("ncclCommDestroy", lambda: self._nccl.comm_destroy(comm))

    def abort(self, comm: Handle) -> None:
        # What waits on the device is told to stop before this returns; NCCL frees it in a thread.
        abort = self._nccl.comm_abort
        self._bounded("ncclCommAbort", lambda: abort(comm), bounded.ABORT_SECONDS)

    def async_error(self, comm: Handle) -> str | None:
        try:
            self._nccl.check_status(self._nccl.comm_get_async_error(comm))
        except self._errors as error:
            return self._text(error)
        return None

    def group_start(self) -> None:
        self._call("ncclGroupStart", self._nccl.group_start)
        self._depth += 1

    def group_end(self) -> None:
        self._depth = max(0, self._depth - 1)
        self._call("ncclGroupEnd", self._nccl.group_end)
        if not self._depth:
            grouped, self._grouped = self._grouped, []
            for comm in grouped:
                self._settle("ncclGroupEnd", comm)

    def all_reduce(
        self, comm: Handle, send: int, receive: int, count: int, dtype: int, op: int, stream: int
    ) -> None:
        function = self._nccl.all_reduce
        self._enqueue("ncclAllReduce", function, comm, stream, send, receive, count, dtype, op)

    def reduce(
        self,
        comm: Handle,
        send: int,
        receive: int,
        count: int,
        dtype: int,
        op: int,
        root: int,
        stream: int,
    ) -> None:
        function = self._nccl.reduce
        self._enqueue("ncclReduce", function, comm, stream, send, receive, count, dtype, op, root)

    def broadcast(
        self,
        comm: Handle,
        send: int,
        receive: int,
        count: int,
        dtype: int,
        root: int,
        stream: int,
    ) -> None:
        function = self._nccl.broadcast
        self._enqueue("ncclBroadcast", function, comm, stream, send, receive, count, dtype, root)

    def reduce_scatter(
        self, comm: Handle, send: int, receive: int, count: int, dtype: int, op: int, stream: int
    ) -> None:
        function = self._nccl.reduce_scatter
        self._enqueue("ncclReduceScatter", function, comm, stream, send, receive, count, dtype, op)

    def all_gather(
        self, comm: Handle, send: int, receive: int, count: int, dtype: int, stream: int
    ) -> None:
        function = self._nccl.all_gather
        self._enqueue("ncclAllGather", function, comm, stream, send, receive, count, dtype)

    def send(self, comm: Handle, send: int, count: int, dtype: int, peer: int, stream: int) -> None:
        self._enqueue("ncclSend", self._nccl.send, comm, stream, send, count, dtype, peer)

    def receive(
        self, comm: Handle, receive: int, count: int, dtype: int, peer: int, stream: int
    ) -> None:
        self._enqueue("ncclRecv", self._nccl.recv, comm, stream, receive, count, dtype, peer)

    def _enqueue(
        self,
        operation: str,
        function: Callable[..., Any],
        comm: Handle,
        stream: int,
        *arguments: int,
    ) -> None:
        """Start a collective; on return it is on its stream, or held back by a group."""
        self._call(operation, function, *arguments, comm, stream)
        if self._depth:
            self._grouped.append(comm)
        else:
            self._settle(operation, comm)

    def _settle(self, operation: str, comm: Handle, look: Callable[[], None] | None = None) -> None:
        """Wait until NCCL has done what it was last asked for: not before may it be asked again."""
        watch = Deadline(self._timeout)
        while (code := self._state(comm)) == _IN_PROGRESS:
            if watch.pause() and look is not None:
                look()
            if watch.late():
                raise bounded.late(self._said(operation), self._timeout)
        self._call(operation, self._nccl.check_status, code)

    def _settle_or_abort(
        self, operation: str, comm: Handle, look: Callable[[], None] | None = None
    ) -> None:
        """The same for a communicator that nobody else refers to."""
        try:
            self._settle(operation, comm, look)
        except (CommError, KeyboardInterrupt):
            with suppress(KVStoreError):  # what has gone wrong already says more
                self.abort(comm)
            raise

    def _state(self, comm: Handle) -> int:
        """The code of what a communicator is doing."""
        return int(self._call("ncclCommGetAsyncError", self._nccl.comm_get_async_error, comm))

    def _call(self, operation: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call NCCL; its error gets the version, the call and what NCCL last said."""
        try:
            return function(*arguments)
        except self._errors as error:
            raise CommAborted(f"{self._said(operation)} failed: {self._text(error)}") from error

    def _bounded(
        self, operation: str, function: Callable[[], Any], seconds: float | None = None
    ) -> Any:
        """Make a call that may block, with a deadline."""
        return bounded.bounded(
            self._said(operation),
            lambda: self._call(operation, function),
            self._timeout if seconds is None else seconds,
        )

    def _said(self, operation: str) -> str:
        """How messages begin."""
        return f"NCCL {version_text(int(self._nccl.get_version()))}: {operation}"

    def _text(self, error: Exception) -> str:
        """What NCCL reports, with the last text that it has for it, or else how to see one."""
        last = self._nccl.get_last_error(self._nccl.Comm())
        if last:
            return f"{error}; NCCL's last message: {last}"
        return f"{error}; run again with NCCL_DEBUG=WARN, and NCCL prints why"


def _installed_version() -> str | None:
    """Of nccl4py, if it is there."""
    try:
        return metadata.version("nccl4py")
    except metadata.PackageNotFoundError:
        return None


def _import() -> tuple[Any, Any]:
    """The module nccl.bindings.nccl, with libnccl behind it, and cupy.cuda."""
    version = _installed_version()
    if version is None:
        raise LaunchError(f"nccl4py is not installed; {_ADVICE}")
    if not installed():
        raise LaunchError(f"nccl4py {version} is not of the series {SERIES}; {_ADVICE}")
    try:
        import cupy
        from nccl.bindings import nccl
    except ImportError as error:
        raise LaunchError(f"nccl4py or CuPy cannot be imported ({error}); {_ADVICE}") from error
    try:
        nccl.get_version()
    except RuntimeError as error:
        raise LaunchError(
            f"nccl4py finds no NCCL library (libnccl.so.2); pip install 'ncclkv[cuda12]' (or "
            f"'ncclkv[cuda13]', as the driver has it), or load your site's NCCL: {error}"
        ) from error
    return nccl, cupy.cuda
