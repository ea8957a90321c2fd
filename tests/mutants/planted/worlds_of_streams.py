"""Faults in the order of streams, which seeded worlds of the stand-in find.

Each is found by the seed that is named here.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Selection

PROGRESS = "ncclkv/comm/nccl/progress.py"
TESTS = "nccl/test_world.py"


def _seed(number: int, test: str = "model[") -> tuple[Selection, ...]:
    """Return the test of a seed."""
    return (Selection("2", TESTS, f"{test}{number}]"),)


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
        tests=_seed(2),
    ),
    Mutant(
        name="a-collective-that-does-not-wait-for-the-caller",
        file=PROGRESS,
        old="        streams.wait(stream, ready)\n        self._enqueue",
        new="        self._enqueue",
        why="a collective reads gradients before they are written",
        tests=_seed(0),
    ),
    Mutant(
        name="memory-given-back-while-a-collective-reads-it",
        file="ncclkv/comm/nccl/work.py",
        old="        self._kept = kept\n",
        new="        self._kept = ()\n",
        why="a sum has numbers that the program wrote to memory of its next array",
        tests=_seed(0, "has_read_it["),
    ),
    Mutant(
        name="flags-given-back-before-their-copy",
        file="ncclkv/engine/nonfinite.py",
        old="            self._comm.keep_alive(self._keys)\n",
        new="",
        why="a report of NaN names keys by what another array has written to the flags",
        tests=_seed(2),
    ),
    Mutant(
        name="no-comparison-while-cupy-waits",
        file="ncclkv/comm/nccl/background.py",
        old="""                compared = self._order_check.poll()
                return not (self._release() and compared)
""",
        new="                return not self._release()\n",
        why="three ranks with two stores wait for each other until the timeout",
        tests=_seed(2, "[CuPy-"),
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
