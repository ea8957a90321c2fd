"""Faults in works in flight: their order, the arrays they keep alive, and their graphs."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Selection

FLIGHT = "ncclkv/comm/nccl/progress.py"
GRAPH = "ncclkv/comm/nccl/graph.py"
LIFETIME = "ncclkv/comm/nccl/lifetime.py"

STORE = "ranks/test_gpu_store.py"

MUTANTS = (
    Mutant(
        name="no-wait-for-the-producer",
        file=FLIGHT,
        old="""\
        streams.wait(stream, ready)
        self._enqueue(""",
        new="""\
        self._enqueue(""",
        why="a collective reads gradients that are still being written",
        tests=(
            Selection("2", "nccl/test_nccl_buffers.py", "waits_for_the_current_stream"),
            Selection("3b", STORE, "a_buffer_used_again_inside and every_rank", ranks=2),
        ),
    ),
    Mutant(
        name="event-before-apply",
        file=FLIGHT,
        old="""\
        if apply is not None:
            with streams.on(stream):
                callbacks.run(self._lifetime.who, apply)
        return NcclWork(self._lifetime, streams, (ready, streams.record(stream)), kept, what)""",
        new="""\
        event = streams.record(stream)
        if apply is not None:
            with streams.on(stream):
                callbacks.run(self._lifetime.who, apply)
        return NcclWork(self._lifetime, streams, (ready, event), kept, what)""",
        why="a pull reads weights that are still being updated",
        tests=(
            Selection("2", "nccl/test_standin_pushpull.py", "arrays and 2"),
            Selection("3b", STORE, "every_optimizer_push and every_rank", ranks=2),
        ),
    ),
    Mutant(
        name="apply-on-the-caller-s-stream",
        file=FLIGHT,
        old="""\
            with streams.on(stream):
                callbacks.run(self._lifetime.who, apply)""",
        new="""\
            callbacks.run(self._lifetime.who, apply)""",
        why="an update runs before its sum has come",
        tests=(
            Selection("2", "nccl/test_standin_pushpull.py", "arrays and 2"),
            Selection("3b", STORE, "a_push_before_the_group and every_rank", ranks=2),
        ),
    ),
    Mutant(
        name="buffers-not-kept",
        file=FLIGHT,
        old="self._put(what, enqueue, apply, objects)",
        new="self._put(what, enqueue, apply, ())",
        why="memory of a collective in flight is given to others",
        tests=(Selection("2", "nccl/test_nccl_buffers.py", "kept_until"),),
    ),
    Mutant(
        name="no-order-between-current-streams",
        file=FLIGHT,
        old="            self._streams.wait(current, self._streams.record(self._last))\n",
        new="            pass\n",
        why="a call on a new stream of the user's overtakes the call before it",
        tests=(Selection("2", "nccl/test_standin_memory_in_use.py", "another_stream"),),
    ),
    Mutant(
        name="copies-not-kept",
        file=FLIGHT,
        old="self._streams.record(self._streams.current()), objects)",
        new="self._streams.record(self._streams.current()), ())",
        why="a copy that a group made is freed while another stream reads it",
        tests=(Selection("2", "nccl/test_standin_memory_in_use.py", "another_stream"),),
    ),
    Mutant(
        name="queue-not-waited-for",
        file=FLIGHT,
        old="            streams.wait(streams.current(), streams.record(stream))\n",
        new="            pass\n",
        why="the caller's stream overtakes what was queued behind the collectives",
        tests=(
            Selection("2", "nccl/test_standin_store.py", "updaters and 3 and every_rank"),
            Selection("3b", STORE, "a_function_gets_the_same_sums and every_rank", ranks=2),
        ),
    ),
    Mutant(
        name="synchronize-forgets-the-current-stream",
        file=FLIGHT,
        old="while not (collectives.done() and others.done()):",
        new="while not collectives.done():",
        why="after a wait of the host the caller's own kernels still run",
        tests=(Selection("2", "nccl/test_nccl_failures.py", "slow_work"),),
    ),
    Mutant(
        name="calls-not-compared-at-a-wait",
        file=FLIGHT,
        old="            self._order_check.drain(limit)\n",
        new="",
        why="kv.wait() returns before the hosts have compared their calls",
        tests=(Selection("2", "nccl/test_in_flight.py", "hosts_have_compared"),),
    ),
    Mutant(
        name="calls-never-compared",
        file=FLIGHT,
        old="                self._order_check.submit(what)\n",
        new="",
        why="ranks that call different things mix up their numbers or hang",
        tests=(Selection("2", "nccl/test_mismatch.py", "share_no_bucket"),),
    ),
    Mutant(
        name="complete-works-never-dropped",
        file=FLIGHT,
        old="            try:\n                self._lifetime.drop_complete()\n",
        new="            try:\n",
        why="a loop of pushes without a wait keeps every event and buffer for ever",
        tests=(Selection("2", "nccl/test_in_flight.py", "dropped_by_later_launches"),),
    ),
    Mutant(
        name="deadline-forgotten",
        file=FLIGHT,
        old="deadline = self._diagnosis.begin(limit)",
        new="deadline = self._diagnosis.begin(1e9)",
        why="a wait for a rank that never comes has no end",
        tests=(Selection("2", "nccl/test_nccl_failures.py", "no_rank_joins and False"),),
    ),
    Mutant(
        name="no-look-while-waiting",
        file=FLIGHT,
        old="                    self._diagnosis.check(deadline, work)\n",
        new="                    pass\n",
        why="a wait for a rank that left, or for an error of NCCL's, has no end",
        tests=(Selection("2", "nccl/test_nccl_failures.py", "leaves_is_named"),),
    ),
    Mutant(
        name="launches-not-watched",
        file=FLIGHT,
        old="            self.background.watch()\n",
        new="",
        why="nobody looks while a program waits by CuPy, and it waits for ever",
        tests=(Selection("2", "nccl/test_watched_waits.py", "checks_from_a_launch and False"),),
    ),
    Mutant(
        name="settings-left-out-of-a-capture",
        file=FLIGHT,
        old="reads = not self._has_launched or self.graphs.recording is not None",
        new="reads = not self._has_launched",
        why="NCCL registers buffers at the first captured collective, in a loop without a deadline",
        tests=(Selection("2", "nccl/test_launch_ranks.py", "settings_are_there_while"),),
    ),
    Mutant(
        name="no-abort-at-a-failure",
        file=LIFETIME,
        old="                    self.binding.abort(handle)\n",
        new="                    pass\n",
        why="kernels of a broken communicator hold the GPU for ever",
        tests=(Selection("2", "nccl/test_nccl_failures.py", "leaves_is_named"),),
    ),
    Mutant(
        name="graphs-after-destroy",
        file=LIFETIME,
        old="            self.binding.destroy(self._end(), look)\n",
        new="            self.binding.destroy(self.handle, look)\n            self._end()\n",
        why="NCCL waits for ever for graphs that are freed afterwards",
        tests=(Selection("2", "nccl/test_capture_ends.py", "close_frees and every_rank"),),
    ),
    Mutant(
        name="graphs-kept-at-an-abort",
        file=LIFETIME,
        old="at_end: list[Callable[[], object]] = [self.graphs.free]",
        new="at_end: list[Callable[[], object]] = []",
        why="NCCL's abort waits for ever for graphs that nobody frees",
        tests=(Selection("2", "nccl/test_capture_ends.py", "end_of_the_process"),),
    ),
    Mutant(
        name="graph-keeps-no-buffers",
        file=GRAPH,
        old="        self.keep_alive(*kept)\n",
        new="",
        why="a replay reads and writes memory that has been given to others",
        tests=(Selection("2", "nccl/test_in_flight.py", "keeps_the_arrays"),),
    ),
    Mutant(
        name="replay-keeps-no-graph",
        file=FLIGHT,
        old="lambda _, stream: graph.enqueue(stream), None, graph)",
        new="lambda _, stream: graph.enqueue(stream), None)",
        why="a step that is dropped in flight takes its arrays along",
        tests=(Selection("2", "nccl/test_capture_ends.py", "released_in_flight and drop"),),
    ),
    Mutant(
        name="freed-graph-forgets-what-it-keeps",
        file=GRAPH,
        old="        self._graph = None\n\n\n",
        new="        self._graph = None\n        self._kept.clear()\n\n\n",
        why="an abort frees arrays that a replay in flight still reads",
        tests=(Selection("2", "nccl/test_capture_ends.py", "abort_frees_in_flight"),),
    ),
    Mutant(
        name="capture-takes-any-stream",
        file=GRAPH,
        old="        if current != self.stream:\n",
        new="        if False:\n",
        why="work on another stream is left out of the graph in silence",
        tests=(Selection("2", "nccl/test_capture_misuse.py", "another_current_stream"),),
    ),
)
