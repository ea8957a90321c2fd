"""Faults in the handling of failures: deadlines, errors, the watcher, the end."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Selection

ORDER_CHECK = "ncclkv/comm/nccl/order_check.py"
DEADLINES = "ncclkv/comm/nccl/deadlines.py"
CREATION = "ncclkv/comm/nccl/creation.py"
DIAGNOSIS = "ncclkv/comm/nccl/diagnosis.py"
BACKGROUND = "ncclkv/comm/nccl/background.py"
LIFETIME = "ncclkv/comm/nccl/lifetime.py"
CTYPES_BINDING = "ncclkv/comm/nccl/ctypes_binding.py"
WATCHER = "ncclkv/comm/nccl/watcher.py"

MUTANTS = (
    Mutant(
        name="a-barrier-for-each-bucket",
        file=ORDER_CHECK,
        old="        if self._peers.digest.value == self._submitted:\n            return\n",
        new="",
        why="each bucket costs a barrier of the hosts",
        tests=(Selection("2", "nccl/test_standin_pushpull.py", "views and 2"),),
    ),
    Mutant(
        name="errors-of-nccl-ignored",
        file=DIAGNOSIS,
        old="        if problem is not None:\n",
        new="        if False:\n",
        why="a broken network is a wait to the deadline that blames the other ranks",
        tests=(Selection("2", "nccl/test_nccl_failures.py", "what_nccl_reports"),),
    ),
    Mutant(
        name="failure-does-not-break",
        file=LIFETIME,
        old="                self.fail(error)\n",
        new="                pass\n",
        why="a communicator goes on after a rank was lost, with other numbers on each rank",
        tests=(Selection("2", "nccl/test_nccl_failures.py", "failure_among_the_hosts"),),
    ),
    Mutant(
        name="error-of-a-bounded-call-swallowed",
        file=DEADLINES,
        old="            outcome[:] = [None, error]\n",
        new="            outcome[:] = [None, None]\n",
        why="a creation that NCCL refuses goes on without a communicator",
        tests=(Selection("3", "nccl/test_library.py", "without_a_gpu"),),
    ),
    Mutant(
        name="bounded-call-without-a-deadline",
        file=DEADLINES,
        old="    thread.join(max(_CALL_CHECK_SECONDS, limit - concurrency.monotonic()))\n",
        new="    thread.join()\n",
        why="a rank that never comes to a creation or an end holds the others for ever",
        tests=(Selection("0", "nccl/test_ctypes_binding.py", "hangs_is_left_behind"),),
    ),
    Mutant(
        name="lost-rank-not-noticed-at-a-creation",
        file=CREATION,
        old="        raise lost\n",
        new="        pass\n",
        why="where a creation fails on one rank the others wait for 300 s",
        tests=(Selection("2", "nccl/test_launch_ranks.py", "cannot_join_is_named"),),
    ),
    Mutant(
        name="failed-creation-not-told",
        file=CREATION,
        old='        peers.abort(f"{type(error).__name__}: {error}")\n',
        new="",
        why="where a creation fails on one rank the others wait for 300 s",
        tests=(Selection("2", "nccl/test_launch_ranks.py", "cannot_join_is_named"),),
    ),
    Mutant(
        name="failure-among-the-hosts-is-theirs-alone",
        file="ncclkv/comm/nccl/communicator.py",
        old="""\
        with self._lifetime:
            return self._control.allgather(item, label)""",
        new="        return self._control.allgather(item, label)",
        why="collectives go on where the hosts have lost each other",
        tests=(Selection("2", "nccl/test_nccl_failures.py", "host_objects"),),
    ),
    Mutant(
        name="lost-rank-blamed-at-once",
        file=DEADLINES,
        old="        return self.waited - self._lost > _GRACE_SECONDS",
        new="        return True",
        why="a rank that leaves after its last collective breaks the others in it",
        tests=(Selection("2", "nccl/test_nccl_failures.py", "has_a_moment"),),
    ),
    Mutant(
        name="calls-not-compared-while-waiting",
        file=DIAGNOSIS,
        old="        if self._detector is not None:\n",
        new="        if False:\n",
        why="ranks that call different things wait for each other to the deadline",
        tests=(Selection("2", "nccl/test_mismatch.py", "works_after_another_call"),),
    ),
    Mutant(
        name="rank-that-followed-another-named",
        file=DIAGNOSIS,
        old="key=lambda each: (abort.follows(each[1]), each[0])",
        new="key=lambda each: each[0]",
        why="a rank that only followed is blamed, and the cause is not shown",
        tests=(Selection("2", "nccl/test_nccl_failures.py", "did_not_follow_another"),),
    ),
    Mutant(
        name="last-error-hides-the-first",
        file=LIFETIME,
        old="self.failure = self.failure or again(error)",
        new="self.failure = again(error)",
        why="a user reads of a consequence and not of the cause",
        tests=(Selection("2", "nccl/test_nccl_end.py", "the_first_failure"),),
    ),
    Mutant(
        name="failure-keeps-its-frames",
        file=LIFETIME,
        old="self.failure = self.failure or again(error)",
        new="self.failure = self.failure or error",
        why="every store that failed keeps its buckets",
        tests=(Selection("2", "nccl/test_nccl_end.py", "without_the_frames"),),
    ),
    Mutant(
        name="ended-communicator-kept-by-its-finalizer",
        file=BACKGROUND,
        old="        self._lifetime.at_end.append(finalizer.detach)\n",
        new="",
        why="a store that failed keeps its buckets if its work in flight refers to it",
        tests=(Selection("2", "nccl/test_nccl_end.py", "with_a_work_in_flight_is_freed"),),
    ),
    Mutant(
        name="errors-of-cuda-left-bare",
        file="ncclkv/comm/nccl/communicator.py",
        old="        return self._streams.reported(error, call)\n",
        new="        return None\n",
        why="a store is not broken by an error of CUDA's, and other ranks wait for this one",
        tests=(Selection("3b", "nccl/emulated/test_injected.py", "cuLaunchKernel and 2"),),
    ),
    Mutant(
        name="nccl-not-asked-until-it-is-done",
        file=CTYPES_BINDING,
        old="            self._settle(operation, comm, look)\n",
        new="            pass\n",
        why="NCCL is called again before it has done what it was asked for",
        tests=(Selection("0", "nccl/test_ctypes_binding.py", "returns_when_nccl_is_done"),),
    ),
    Mutant(
        name="nccls-text-swallowed",
        file=CTYPES_BINDING,
        old="        if last:\n",
        new="        if False:\n",
        why="a user reads NCCL's code and not what NCCL says of it",
        tests=(Selection("0", "nccl/test_ctypes_binding.py", "last_message"),),
    ),
    Mutant(
        name="watcher-never-looks",
        file=WATCHER,
        old="            self._look()\n",
        new="            pass\n",
        why="a program that waits by CuPy for a rank that died waits for ever",
        tests=(Selection("0", "nccl/test_watcher.py", "until_nothing_is_in_flight"),),
    ),
    Mutant(
        name="watcher-looks-once",
        file=WATCHER,
        old="            if again:\n",
        new="            if False:\n",
        why="a rank that dies later than a tenth of a second is not noticed",
        tests=(Selection("0", "nccl/test_watcher.py", "until_nothing_is_in_flight"),),
    ),
    Mutant(
        name="watcher-s-clock-stands-still",
        file=BACKGROUND,
        old="            self._deadline.tick()\n",
        new="",
        why="a wait by CuPy has no deadline",
        tests=(Selection("2", "nccl/test_watched_waits.py", "deadline_counts"),),
    ),
    Mutant(
        name="watcher-looks-in-a-capture",
        file=BACKGROUND,
        old="        if self._lifetime.graphs.recording is not None:",
        new="        if False:",
        why="a capture is spoilt now and then, by the watcher",
        tests=(Selection("2", "nccl/test_watched_waits.py", "looked_at_in_a_capture"),),
    ),
    Mutant(
        name="dropped-store-freed-in-flight",
        file=BACKGROUND,
        old="        if idle and self._is_dropped",
        new="        if self._is_dropped",
        why="a store that is dropped after its last push loses that push",
        tests=(Selection("2", "nccl/test_dropped_communicators.py", "without_a_watcher"),),
    ),
)
