"""NCCL through CuPy.

CuPy's table of NCCL's errors ends before ``ncclInProgress``, which then is a bare ``KeyError: 7``,
and a CuPy that finds no libnccl has neither errors nor communicators; both are put into words here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ncclkv.comm.nccl import bounded
from ncclkv.comm.nccl.binding import Handle, version_text
from ncclkv.errors import CommAborted, LaunchError

_IN_PROGRESS = 7

_EXTRAS = "'ncclkv[cuda12]' (or 'ncclkv[cuda13]', as the driver has it)"


class CupyBinding:
    """The functions of ``cupy.cuda.nccl``.

    Parameters
    ----------
    device : int, optional
        The device of the communicators to be made; by default the current one.
    timeout : float
        Seconds for all ranks to come to `create` and to `destroy`.

    Raises
    ------
    LaunchError
        When CuPy or libnccl is missing.
    """

    name = "cupy.cuda.nccl"
    uncaptured = ""

    def __init__(self, device: int | None = None, timeout: float = 300.0) -> None:
        self._nccl, self._cuda = _import()
        self._errors = (self._nccl.NcclError, self._cuda.runtime.CUDARuntimeError, KeyError)
        self._device = device
        self._timeout = timeout

    def version(self) -> int:
        return int(self._call("ncclGetVersion", self._nccl.get_version))

    def unique_id(self) -> bytes:
        return bytes(self._call("ncclGetUniqueId", self._nccl.get_unique_id))

    def create(self, size: int, unique_id: bytes, rank: int, look: Callable[[], None]) -> Handle:
        make = self._nccl.NcclCommunicator
        try:
            return self._bounded("ncclCommInitRank", lambda: make(size, unique_id, rank), look=look)
        except CommAborted as error:
            raise LaunchError(str(error)) from error

    def connect(
        self, comm: Handle, peers: Sequence[int], room: tuple[int, int], stream: int
    ) -> None:
        self._bounded("ncclGroupEnd", partial(bounded.connect, self, comm, peers, room, stream))

    def destroy(self, comm: Handle) -> None:
        self._bounded("ncclCommDestroy", comm.destroy)

    def abort(self, comm: Handle) -> None:
        self._bounded("ncclCommAbort", comm.abort, bounded.ABORT_SECONDS)

    def async_error(self, comm: Handle) -> str | None:
        try:
            comm.check_async_error()
        except self._errors as error:
            return _text(error)
        return None

    def group_start(self) -> None:
        self._call("ncclGroupStart", self._nccl.groupStart)

    def group_end(self) -> None:
        self._call("ncclGroupEnd", self._nccl.groupEnd)

    def all_reduce(
        self, comm: Handle, send: int, receive: int, count: int, dtype: int, op: int, stream: int
    ) -> None:
        self._call("ncclAllReduce", comm.allReduce, send, receive, count, dtype, op, stream)

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
        self._call("ncclReduce", comm.reduce, send, receive, count, dtype, op, root, stream)

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
        self._call("ncclBroadcast", comm.broadcast, send, receive, count, dtype, root, stream)

    def reduce_scatter(
        self, comm: Handle, send: int, receive: int, count: int, dtype: int, op: int, stream: int
    ) -> None:
        self._call("ncclReduceScatter", comm.reduceScatter, send, receive, count, dtype, op, stream)

    def all_gather(
        self, comm: Handle, send: int, receive: int, count: int, dtype: int, stream: int
    ) -> None:
        self._call("ncclAllGather", comm.allGather, send, receive, count, dtype, stream)

    def send(self, comm: Handle, send: int, count: int, dtype: int, peer: int, stream: int) -> None:
        self._call("ncclSend", comm.send, send, count, dtype, peer, stream)

    def receive(
        self, comm: Handle, receive: int, count: int, dtype: int, peer: int, stream: int
    ) -> None:
        self._call("ncclRecv", comm.recv, receive, count, dtype, peer, stream)

    def _call(self, operation: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call NCCL; its error gets the version, the call and one thing to do."""
        try:
            return function(*arguments)
        except self._errors as error:
            raise CommAborted(
                f"NCCL {self._version()}: {operation} failed: {_text(error)}; run again with "
                f"NCCL_DEBUG=WARN, and NCCL prints why"
            ) from error

    def _bounded(
        self,
        operation: str,
        function: Callable[[], Any],
        seconds: float | None = None,
        look: Callable[[], None] | None = None,
    ) -> Any:
        """Make a call that waits for other ranks, with a deadline."""
        return bounded.bounded(
            f"NCCL {self._version()}: {operation}",
            lambda: self._call(operation, self._on_device, function),
            self._timeout if seconds is None else seconds,
            look,
        )

    def _on_device(self, function: Callable[[], Any]) -> Any:
        """Call it in a new thread, whose current device is not the caller's."""
        if self._device is not None:
            self._cuda.Device(self._device).use()
        return function()

    def _version(self) -> str:
        """For messages; an error must not hide another."""
        return version_text(int(self._nccl.get_version()))


def _text(error: Exception) -> str:
    """What NCCL reports."""
    if not isinstance(error, KeyError):
        return str(error)
    code = error.args[0] if error.args else "?"
    if code == _IN_PROGRESS:
        return (
            "ncclInProgress, which CuPy does not know: NCCL returns before it is done; unset "
            "NCCL_COMM_BLOCKING, also in nccl.conf"
        )
    return f"code {code}, which CuPy does not know"


def _import() -> tuple[Any, Any]:
    """The modules cupy.cuda.nccl, with libnccl behind it, and cupy.cuda."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy warns of a missing libnccl; we raise
            import cupy
            from cupy.cuda import nccl
    except ImportError as error:
        raise LaunchError(f"CuPy cannot be imported ({error}); pip install {_EXTRAS}") from error
    if not nccl.available:
        raise LaunchError(
            f"CuPy finds no NCCL library (libnccl.so.2); pip install {_EXTRAS}, or load your "
            f"site's NCCL"
        )
    return nccl, cupy.cuda
