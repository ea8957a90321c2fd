"""Tracing: starts and ends the traces of a store, and compares the clocks of its ranks."""

from __future__ import annotations

import logging
import os
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ncclkv import concurrency, env
from ncclkv.comm.diagnosis import farewells
from ncclkv.errors import RankLost, UsageError
from ncclkv.store.attached_instruments import AttachedInstruments
from ncclkv.store.context import Component, Context

if TYPE_CHECKING:
    from ncclkv.engine.instrument import Instrument
    from ncclkv.observe.tracer import Tracer

_log = logging.getLogger("ncclkv")

_PINGS = 8
"""Exchanges at each comparison of clocks; the closest two ranks meet in counts."""


class Trace(AbstractContextManager["Trace"]):
    """A trace of one rank, which has begun; made by `KVStore.trace`.

    Attributes
    ----------
    path : str
        The file.
    """

    def __init__(self, tracer: Tracer, instruments: AttachedInstruments) -> None:
        from ncclkv.observe.ranges import ranges  # only a trace needs it

        self.path = str(tracer.path)
        self._tracer = tracer
        self._added: list[Instrument] = [tracer, *ranges()]
        self._instruments = instruments
        for each in self._added:
            instruments.attach(each)

    def stop(self) -> None:
        """End the trace: write the last events, and close the file; a second call does nothing."""
        for each in self._added:
            self._instruments.remove(each)
        self._tracer.stop()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class Tracing(Component):
    """The traces of a store: that of ``NCCLKV_TRACE``, and those that the program starts.

    Parameters
    ----------
    context : Context
    instruments : AttachedInstruments
    name : str
        Name of the store.
    """

    def __init__(self, context: Context, instruments: AttachedInstruments, name: str) -> None:
        super().__init__(context)
        self._instruments = instruments
        self._name = name
        self._traces: list[Trace] = []
        self._first: Tracer | None = None
        directory = env.trace()
        if directory:
            try:
                self._first = self._tracer(directory)
            except OSError as error:  # other ranks have begun to train
                _log.error("NCCLKV_TRACE=%r: nothing is traced: %s", directory, error)
            else:
                self._traces.append(Trace(self._first, instruments))
        self.compare_clocks()

    def start(self, directory: Any) -> Trace:
        """Start a trace."""
        with self._session.prefixing_rank():
            self._session.check("trace")
            if not isinstance(directory, (str, os.PathLike)):
                raise UsageError(
                    f"trace takes a directory, not a {type(directory).__name__}; traces end by "
                    f"stop_traces()"
                )
            try:
                tracer = self._tracer(directory)
            except OSError as error:
                raise UsageError(
                    f"trace: no file can be made in {os.fspath(directory)!r}: {error.strerror}; "
                    f"give a directory that this rank can write to"
                ) from error
        self._traces.append(Trace(tracer, self._instruments))
        return self._traces[-1]

    def stop(self) -> None:
        """End all traces."""
        with self._session.prefixing_rank():
            self._session.check("stop_traces")
        traces, self._traces = self._traces, []
        for trace in traces:
            trace.stop()

    def _tracer(self, directory: str | os.PathLike[str]) -> Tracer:
        """Return a new tracer of this rank."""
        from ncclkv.observe.tracer import Tracer  # only a trace needs it

        comm = self._comm
        group = "" if comm.calls is None else comm.calls.store
        return Tracer(directory, self._name, group, comm.rank, comm.size)

    def compare_clocks(self) -> None:
        """Exchange short messages, if ``NCCLKV_TRACE`` was set on all ranks; collective then.

        No rank leaves an exchange before all ranks have entered it: so each exchange bounds the
        difference of two clocks.  Ranks that are threads have one clock.
        """
        roster = None if self._comm.calls is None else self._comm.calls.roster
        if roster is None or not all(member.traces for member in roster.members):
            return
        for index in range(_PINGS):
            begin = concurrency.perf_counter()
            self._comm.control.barrier("a comparison of clocks")
            if self._first is not None:
                self._first.ping(index, concurrency.perf_counter() - begin)

    def compare_clocks_at_end(self) -> None:
        """Compare clocks before the close; collective, but waits for no rank that has left."""
        try:
            self.compare_clocks()
        except RankLost as lost:
            farewells.forgive(lost)
