"""Faults in traces and metrics: clocks, files, and the numbers of ranks and buckets."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Selection

CLOCKS = "ncclkv/observe/clocks.py"
LINES = "ncclkv/observe/json_lines.py"
TRACER = "ncclkv/observe/tracer.py"
TIMELINE = "ncclkv/observe/timeline.py"
COUNTER = "ncclkv/observe/counter.py"

OF_CLOCKS = Selection("0", "unit/observe/test_clocks.py")
OF_LINES = Selection("0", "unit/observe/test_json_lines.py")
OF_TRACER = Selection("0", "unit/observe/test_tracer.py")
OF_COUNTER = Selection("0", "unit/observe/test_counter.py")

MUTANTS = (
    Mutant(
        name="clocks-by-the-last-exit",
        file=CLOCKS,
        old="        high = min(exits[own]) - max(enters[first])\n",
        new="        high = max(exits[own]) - max(enters[first])\n",
        why="bounds are as wide as the slowest rank, and a clock is off by it",
        tests=(OF_CLOCKS,),
    ),
    Mutant(
        name="clocks-with-a-bound-that-is-none",
        file=CLOCKS,
        old="        low = max(enters[own]) - min(exits[first])\n",
        new="        low = min(enters[own]) - max(exits[first])\n",
        why="the error that is printed is wider than it is",
        tests=(OF_CLOCKS,),
    ),
    Mutant(
        name="clocks-without-drift",
        file=CLOCKS,
        old="            return ClockOffset(begin[:2], end[:2], max(begin[2], end[2]))\n",
        new="            return ClockOffset(begin[:2], begin[:2], max(begin[2], end[2]))\n",
        why="spans of two machines drift apart in a trace of hours",
        tests=(OF_CLOCKS,),
    ),
    Mutant(
        name="lines-of-a-fork",
        file=LINES,
        old=" or this_process.pid != self._pid:",
        new=":",
        why="a fork writes the events of its parent again",
        tests=(OF_LINES,),
    ),
    Mutant(
        name="lines-by-count-alone",
        file=LINES,
        old=" or now - self._written > _SECONDS:",
        new=":",
        why="a killed process loses minutes of a slow program",
        tests=(OF_LINES,),
    ),
    Mutant(
        name="a-wait-that-stays-in-memory",
        file=TRACER,
        old="        self._lines.flush()  # the wait may never end, and the process be killed\n",
        new="",
        why="the trace of a job that hangs ends a second before the hang",
        tests=(OF_TRACER,),
    ),
    Mutant(
        name="spans-that-cross",
        file=TIMELINE,
        old="            end = ends[-1]\n",
        new="            pass\n",
        why="Perfetto drops a span that ends after the span around it",
        tests=(OF_TRACER,),
    ),
    Mutant(
        name="collectives-on-one-thread",
        file=TIMELINE,
        old='            if lane[-1]["ts"] + lane[-1]["dur"] <= event["ts"]:\n',
        new="            if True:\n",
        why="collectives in flight at once are cut to the end of the first",
        tests=(OF_TRACER,),
    ),
    Mutant(
        name="bandwidth-of-an-allreduce-counted-once",
        file=COUNTER,
        old='{"allreduce": 2.0,',
        new='{"allreduce": 1.0,',
        why="the bus bandwidth is half of what NCCL's tests print",
        tests=(OF_COUNTER,),
    ),
)
