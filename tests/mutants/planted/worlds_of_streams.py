"""Faults in the order of streams, which seeded worlds of the stand-in find.

A test runs several seeds, since a change of the package moves the steps of each seed.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Selection

PROGRESS = "ncclkv/comm/nccl/progress.py"
TESTS = "nccl/test_world.py"


PROGRAMS = (Selection("2", TESTS, "numbers_of_the_model"),)
MEMORY = (Selection("2", TESTS, "has_read_it"),)
COMPARISONS = (Selection("2", TESTS, "waits_for_its_device"),)


MUTANTS = (
    Mutant(
        name="an-event-before-the-update-it-stands-for",
        file=PROGRESS,
        old="""        if apply is not None:
            with streams.on(stream):
                callbacks.run(self._lifetime.who, apply)
        return NcclWork(self._lifetime, streams, (ready, streams.record(stream)), kept, what)
""",
        new="""        done = streams.record(stream)
        if apply is not None:
            with streams.on(stream):
                callbacks.run(self._lifetime.who, apply)
        return NcclWork(self._lifetime, streams, (ready, done), kept, what)
""",
        why="a pull copies a value before its update",
        tests=PROGRAMS,
    ),
    Mutant(
        name="a-collective-that-does-not-wait-for-the-caller",
        file=PROGRESS,
        old="        streams.wait(stream, ready)\n        self._enqueue",
        new="        self._enqueue",
        why="a collective reads gradients before they are written",
        tests=PROGRAMS,
    ),
    Mutant(
        name="memory-given-back-while-a-collective-reads-it",
        file="ncclkv/comm/nccl/work.py",
        old="        self._kept = kept\n",
        new="        self._kept = ()\n",
        why="a sum has numbers that the program wrote to memory of its next array",
        tests=MEMORY,
    ),
    Mutant(
        name="flags-given-back-before-their-copy",
        file="ncclkv/engine/nonfinite.py",
        old="            self._comm.keep_alive(self._keys)\n",
        new="",
        why="a report of NaN names keys by what another array has written to the flags",
        tests=PROGRAMS,
    ),
    Mutant(
        name="no-comparison-while-cupy-waits",
        file="ncclkv/comm/nccl/background.py",
        old="""                compared = self._order_check.poll()
                return not (self._release() and compared)
""",
        new="                return not self._release()\n",
        why="three ranks with two stores wait for each other until the timeout",
        tests=COMPARISONS,
    ),
    Mutant(
        name="no-comparison-while-a-stream-is-awaited",
        file="ncclkv/comm/nccl/diagnosis.py",
        old="        self._order_check.poll()\n        if work is not None:\n",
        new="        if work is not None:\n            self._order_check.poll()\n",
        why="three ranks with two stores wait for each other until the timeout",
        tests=(Selection("2", TESTS, "synchronize"),),
    ),
)
