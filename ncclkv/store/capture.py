"""A steady step as one call: captured once, replayed as often as it is wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ncclkv.engine.capture import Recording, recorded
from ncclkv.engine.engine import Engine
from ncclkv.errors import NotSupported, UsageError
from ncclkv.store.agreement import agree, propose
from ncclkv.store.call_cache import CallCache
from ncclkv.store.call_log import CallLog
from ncclkv.store.session import IN_CAPTURE, Session
from ncclkv.store.transfers import Transfers


class CapturedStep:
    """The pushes and pulls of a ``with kv.capture()`` block.

    It keeps all arrays that they name until it is closed or dropped.
    """

    def __init__(self, session: Session, engine: Engine, operations: CallLog) -> None:
        self._session = session
        self._operations = operations
        self._engine = engine
        self._recording: Recording | None = None

    def __repr__(self) -> str:
        graph = None if self._recording is None else self._recording.graph
        what = "not there" if graph is None else f"collectives={len(graph.calls)}"
        return f"<ncclkv captured step: {what}>"

    def replay(self) -> None:
        """Do all that the block did, in one call, with what is in its arrays now; collective.

        It begins after all that is on CuPy's current stream, and what is put there next finds it
        done; the host waits for nothing.  What waits in its buckets is launched first.  An
        optimizer's learning rate is what it is now.

        Raises
        ------
        UsageError
            When the step was closed, or its block did not come to its end; when the store has
            another updater now, or another number of the optimizer's than its learning rate has
            changed.
        """
        with self._session.verb("replay"):
            recording = self._recording
            if recording is None or recording.graph is None:
                raise UsageError(
                    "replay: there is no graph of this step, which was closed, or left by an "
                    "exception while it was captured; capture it again"
                )
            recording.check(self._engine.rule)
            self._operations.note("replay")
            self._engine.settle(recording.states)
            recording.write_learning_rate()
            recording.graph.launch().wait()

    def close(self) -> None:
        """Free the graph once no replay is under way, and let go of its arrays; local."""
        self._recording = None

    def begin(self, recording: Recording) -> None:
        """The block was captured."""
        self._recording = recording


class CaptureVerbs(Transfers):
    """``capture``."""

    @contextmanager
    def capture(self) -> Iterator[CapturedStep]:
        """Capture the pushes and pulls of a ``with`` block as a CUDA graph; collective.

        Nothing in the block is done: `CapturedStep.replay` does all of it, each time with what is
        in the arrays then, for the host's time of one call.  The same step must have been made once
        before.  Inside the block, CuPy's current stream is one of the capture's own.

        Only push, pull with `out`, pushpull, group and local verbs may be called inside, with
        CuPy's arrays on the store's GPU.  Kernels of the user's own that are put on CuPy's current
        stream there are captured with them, if they allocate no memory, have been launched before,
        and read and write memory that stays while the step lives.

        Of an optimizer's numbers a replay takes the learning rate as it is then, and all others as
        they were in the block.

        Yields
        ------
        CapturedStep
            To be replayed after the block.

        Raises
        ------
        NotSupported
            When the store is in host memory, its binding to NCCL is nccl4py, or its optimizer does
            not say that it can be captured.
        UsageError
            When the updater is a function, keys have no place yet, or the step has not been made
            before; for NumPy arrays, and others that a capture cannot take; for all other verbs.
            It leaves the block, and the store is as it was before.
        SpecMismatch
            On every rank, when ranks captured different steps, or only some could.

        Examples
        --------
        Of a store on a GPU::

            kv.pushpull(keys, gradients, weights)          # once, for all it needs
            with kv.capture() as step:
                kv.pushpull(keys, gradients, weights)
            for batch in data:
                compute(batch, weights, gradients)         # on CuPy's current stream
                step.replay()
        """
        with self._session.verb("capture"):
            captured = self._comm.capture()
            if self._engine.presence.needs_exchange or self._engine.presence.flagged:
                raise NotSupported(
                    "capture: with missing='zeros' or nonfinite= what a flush does is found out "
                    "at its begin, which no graph holds; make the step's calls each time"
                )
            self._operations.note("capture")
            recording, _ = propose(self._comm, "capture", lambda: (self._recording(), []))
            self._engine.settle()
            self._comm.synchronize()
        step, problem = CapturedStep(self._session, self._engine, self._operations), None
        try:
            with captured as graph, self._recorded(recording):
                yield step
                with self._session.verb("capture", allowed_inside=(IN_CAPTURE,)):
                    self._engine.settle(recording.states)
            recording.end(graph)
        except Exception as error:
            problem = error
        except BaseException as error:
            self._session.broken_off("capture", error)
            raise
        if self._session.failure is None and not self._session.closed:
            self._agree([] if problem else graph.calls, problem)
        if problem is not None:
            with self._session.named():
                raise problem
        step.begin(recording)

    def _agree(self, calls: list[str], problem: Exception | None) -> None:
        """Make sure that all ranks captured the same calls, or none of them any."""
        with self._session.verb("capture"):
            try:
                agree(self._comm, "capture", calls, problem)
            except Exception as error:
                # One that all ranks have is the caller's, and says nothing of the store.
                if error is not problem:
                    raise

    def _recording(self) -> Recording:
        """What the step will need; refuse a store that is not ready."""
        if not self._engine.layout.sealed:
            raise UsageError(
                "capture: some keys have no place yet, which the first push gives them; make the "
                "same step once before it is captured"
            )
        return Recording(self._kernels, self._engine.rule)

    @contextmanager
    def _recorded(self, recording: Recording) -> Iterator[None]:
        """Take the calls of a block for part of a captured step."""
        session = self._session
        # Of a call that is known nobody would see the arrays.
        known, self._recent = self._recent, CallCache(self._engine.layout.registry)
        session.inside, session.recording = IN_CAPTURE, True
        try:
            with recorded(self._engine, recording), self._operations.quietly():
                yield
        finally:
            session.inside, session.recording = "", False
            self._recent = known
