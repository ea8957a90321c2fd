"""Faults in events: numbers, times, and the rank that is reported as late."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Selection

EVENTS = "ncclkv/engine/events.py"
REDUCER = "ncclkv/engine/reducer.py"
REDUCTIONS = "ncclkv/comm/host/reductions.py"
SEQUENCE = "ncclkv/comm/shm/sequence.py"
SESSION = "ncclkv/store/session.py"

UNIT = Selection("0", "unit/engine/test_events.py")
SLOTS = Selection("0", "unit/comm/shm/test_sequence.py")
RANKS = Selection("0", "ranks/test_events.py", ranks=3)
NODES = Selection("0", "ranks/test_events.py", ranks=4, environment=("NCCLKV_RANKS_PER_NODE=2",))

MUTANTS = (
    Mutant(
        name="collectives-counted-while-somebody-listens",
        file=REDUCER,
        old="                self.events.sequence += 1\n",
        new="",
        why="events of ranks with instruments of different age cannot be matched",
        tests=(RANKS,),
    ),
    Mutant(
        name="bytes-of-the-array-taken-for-sent-bytes",
        file=REDUCER,
        old="            collective.wire_bytes,\n            bucket",
        new="            span.gradients.nbytes,\n            bucket",
        why="a rank alone reports traffic",
        tests=(Selection("0", "unit/engine/test_reduction.py"), RANKS),
    ),
    Mutant(
        name="collectives-not-counted-while-an-instrument-listens",
        file=EVENTS,
        old="        self.sequence += 1\n",
        new="",
        why="the root's broadcast has the number of the reduction before it",
        tests=(UNIT, RANKS),
    ),
    Mutant(
        name="earliest-rank-is-late",
        file=EVENTS,
        old="sorted(times, key=times.__getitem__)",
        new="sorted(times, key=times.__getitem__, reverse=True)",
        why="the rank that waits most is blamed",
        tests=(UNIT, RANKS),
    ),
    Mutant(
        name="late-after-the-first-rank",
        file=EVENTS,
        old="*_, before, last = sorted",
        new="before, *_, last = sorted",
        why="the last rank is blamed for time that another rank cost too",
        tests=(UNIT,),
    ),
    Mutant(
        name="collectives-complete-in-no-time",
        file=EVENTS,
        old='emit("completed", seq, end - self._launched)',
        new='emit("completed", seq, end - begin)',
        why="a collective that overlaps the program looks as short as its wait",
        tests=(UNIT,),
    ),
    Mutant(
        name="instrument-that-raises-stays",
        file=EVENTS,
        old="                self.remove(instrument)\n",
        new="",
        why="each later verb logs the exception again",
        tests=(UNIT, RANKS),
    ),
    Mutant(
        name="verbs-inside-instruments",
        file=SESSION,
        old="            if self._begin is not None:\n"
        "                self._events.end(self._name, self._begin)\n"
        '            self._running.verb = ""\n',
        new='            self._running.verb = ""\n'
        "            if self._begin is not None:\n"
        "                self._events.end(self._name, self._begin)\n",
        why="an instrument that calls a verb calls itself without end",
        tests=(UNIT,),
    ),
    Mutant(
        name="verbs-inside-instruments-at-the-begin",
        file=SESSION,
        old="        self._running.verb = self._name\n        try:\n            return",
        new="        try:\n            return",
        why="an instrument that calls a verb calls itself without end",
        tests=(UNIT,),
    ),
    Mutant(
        name="ranks-awaited-first-are-blamed",
        file="ncclkv/comm/diagnosis/awaited.py",
        old="long[-1], waited",
        new="long[0], waited",
        why="a rank that was there long before the end of a wait is blamed for it",
        tests=(RANKS,),
    ),
    Mutant(
        name="times-of-a-later-collective",
        file=SEQUENCE,
        old="        return times if all(ENTERED <= phase <= DONE for phase in reached) else {}\n",
        new="        return times if all(ENTERED <= phase for phase in reached) else {}\n",
        why="a rank is blamed for the time of a collective 1,024 launches later",
        tests=(SLOTS,),
    ),
    Mutant(
        name="times-before-all-have-entered",
        file=SEQUENCE,
        old="        return times if all(ENTERED <= phase <= DONE for phase in reached) else {}\n",
        new="        return times if all(phase <= DONE for phase in reached) else {}\n",
        why="a rank that sends to the root alone reads times of an old collective",
        tests=(SLOTS,),
    ),
    Mutant(
        name="no-times-of-several-nodes",
        file=REDUCTIONS,
        old="                arrivals=arrivals,\n",
        new="",
        why="no rank is reported as late in a job of several nodes",
        tests=(NODES,),
    ),
)
