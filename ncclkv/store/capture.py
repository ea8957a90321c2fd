"""Captures: a step of pushes and pulls, captured once and replayed any number of times.

``comm.capture`` makes a capturing stream current.  The events of a launch bring the communication
stream into the capture, and the waits return it.  A captured block ends with all its buckets
settled, so a replay leaves no push behind.  A replay is one launch on the communication stream, in
the order of the calls and with their deadline.

`ncclkv.engine.capture.RecordingKernels` replace the kernels meanwhile, and refuse what a graph
cannot repeat.  A sum of more than 256 arrays of a key, of 16-bit floats, needs memory, and CUDA
refuses it.  Learning rate, decay, factors and counts may change between replays
(`ncclkv.optimizer.captured`).  An optimizer that counts updates, or has a schedule, may update a
key once in a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ncclkv.engine.capture import Recorder
from ncclkv.engine.reductions import FORMS
from ncclkv.errors import NotSupported, UsageError
from ncclkv.store.agreement import agree, propose
from ncclkv.store.context import Component, Context
from ncclkv.store.session import IN_CAPTURE
from ncclkv.tracebacks import public


class CapturedStep:
    """The pushes and pulls of a ``with kv.capture()`` block.

    The step keeps all arrays of these calls until it is closed or dropped.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._recording: Recorder | None = None

    def __repr__(self) -> str:
        graph = None if self._recording is None else self._recording.graph
        what = "no graph" if graph is None else f"collectives={len(graph.calls)}"
        return f"<ncclkv captured step: {what}>"

    @public
    def replay(self) -> None:
        """Replay the calls of the block in one call, with the arrays' present content; collective.

        The replay starts after all work on CuPy's current stream, and later work on that stream
        starts after the replay.  The host does not wait.  Waiting pushes are launched first.  The
        optimizer's hyperparameters are those of now.

        Raises
        ------
        UsageError
            When the step was closed, or an exception left its block; when the store has
            another updater now; when a factor of the optimizer is not finite.
        """
        engine = self._context.engine
        with self._context.session.verb("replay"):
            recording = self._recording
            if recording is None or recording.graph is None:
                raise UsageError(
                    "replay: this step has no graph: it was closed, or an exception left its "
                    "block; capture it again"
                )
            recording.check(engine.rule, engine.reductions.rules)
            self._context.calls.record("replay")
            engine.settle(recording.states)
            if recording.updates is not None:
                recording.updates.write()
            recording.graph.launch().wait()

    def close(self) -> None:
        """Release the step's arrays, and free its graph once no replay is under way; local."""
        self._recording = None

    def begin(self, recording: Recorder) -> None:
        """Make the step ready for replays: its block was captured."""
        self._recording = recording


class Captures(Component):
    """Records the calls of a block in a CUDA graph, on all ranks or on none."""

    @contextmanager
    def capture_block(self) -> Iterator[CapturedStep]:
        """Capture the pushes and pulls of a block; collective."""
        session = self._session
        with session.verb("capture"):
            captured = self._comm.capture()
            if self._engine.policy.flushes_everything:
                raise NotSupported(
                    "capture: with missing='zeros' or nonfinite= ranks agree on a flush when it "
                    "begins, which no graph holds; make the step's calls each time"
                )
            self._calls.record("capture")
            recording, _ = propose(self._comm, "capture", lambda: (self._new_recording(), []))
            self._engine.settle()
            self._comm.synchronize()
        step, problem = CapturedStep(self._context), None
        try:
            with (
                captured as graph,
                session.enclosing(IN_CAPTURE),
                self._engine.recording_with(recording),
                self._calls.suspended(),
            ):
                yield step
                with session.verb("capture", allowed_inside=(IN_CAPTURE,)):
                    self._engine.settle(recording.states)
            recording.end(graph)
        except Exception as error:
            problem = error
        except BaseException as error:
            session.mark_interrupted("capture", error)
            raise
        if session.failure is None and not session.closed:
            self._agree([] if problem else graph.calls, problem)
        if problem is not None:
            with session.prefixing_rank():
                raise problem
        step.begin(recording)

    def _agree(self, calls: list[str], problem: Exception | None) -> None:
        """Make sure that all ranks captured the same calls, or none of them any."""
        with self._session.verb("capture"):
            try:
                agree(self._comm, "capture", calls, problem)
            except Exception as error:
                # The block raised the program's own error on all ranks, which breaks no store.
                if error is not problem:
                    raise

    def _new_recording(self) -> Recorder:
        """Return the recorder of a step; refuse a store that is not ready."""
        if not self._engine.layout.sealed:
            raise UsageError(
                "capture: some keys have no slot yet, since the first push assigns the slots; make "
                "the same step once before the capture"
            )
        engine = self._engine
        for spec in engine.layout.registry:
            codec = engine.reductions.codec(spec)
            if codec is not None and not FORMS[codec.name].captured:
                raise NotSupported(
                    f"capture: key {spec.key!r} is compressed by {codec.name}, whose sums change "
                    f"from launch to launch; choose another type, or make the step's calls each "
                    f"time",
                    key=spec.key,
                )
        states, codecs = engine.layout.states, engine.reductions.rules
        return Recorder(engine.kernels, engine.rule, states, codecs)
