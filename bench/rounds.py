"""Rounds in which candidates take turns, so that other load affects all of them alike."""

from __future__ import annotations

import gc
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from bench.job import Job


class Marks:
    """Times at which the phases of a step ended on this rank, in seconds."""

    def __init__(self) -> None:
        self.times: list[tuple[str, float]] = []

    def __call__(self, phase: str) -> None:
        self.times.append((phase, time.perf_counter()))


class Candidate(ABC):
    """One method of doing a piece of work.

    Attributes
    ----------
    name : str
        Name in tables.
    calls : int
        Repetitions of the work in one turn, for short work.
    """

    name: str
    calls: int = 1

    @abstractmethod
    def prepare(self, step: int) -> None:
        """Write the inputs of a step and overwrite the outputs; not timed."""

    @abstractmethod
    def run(self, mark: Marks) -> None:
        """Do the work; call `mark` where phases end."""

    @abstractmethod
    def wrong(self) -> int:
        """Return the count of wrong elements in this rank's results; not timed."""


@dataclass
class Result:
    """All turns of one candidate.

    Attributes
    ----------
    seconds : list of float
        Seconds of a call in each round: from the first rank's start to the last rank's end,
        divided by the calls.
    phases : dict of list of float
        Seconds of each phase in each round, the mean over ranks.  The phases are those that the
        candidate marks and the "rest"; without marks "all".
    wrong : int
        Wrong elements over all ranks, warm-up included.
    """

    name: str
    seconds: list[float]
    phases: dict[str, list[float]] = field(default_factory=dict)
    wrong: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def p5(self) -> float:
        """Return the 5th percentile of the rounds: the least of up to 20, and more of more."""
        return float(np.percentile(self.seconds, 5))

    def phase(self, name: str) -> float:
        """Return the median of a phase."""
        return statistics.median(self.phases[name])

    def summary(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "name": self.name,
            "median": self.median,
            "seconds": self.seconds,
            "phases": self.phases,
            "wrong": self.wrong,
        }


def take_turns(job: Job, title: str, candidates: Sequence[Candidate]) -> dict[str, Result]:
    """Run all candidates in every round, in a new order each; return results; collective.

    A turn begins with the caches and the placement on cores that the turn before has left, so no
    candidate may follow the same one each time.  The draw has a fixed seed: all ranks draw alike.
    Every turn has a step of its own: the results of an earlier turn never pass as its own.
    """
    rounds = job.options.warmups + job.options.rounds
    move = job.progress(rounds * len(candidates), title)
    spans: dict[str, list[Any]] = defaultdict(list)
    wrong: dict[str, int] = defaultdict(int)
    draw = random.Random(0)
    order = [turn for _ in range(rounds) for turn in draw.sample(candidates, len(candidates))]
    gc.collect()
    gc.disable()
    try:
        for step, candidate in enumerate(order, 1):
            spans[candidate.name].append(_turn(job, candidate, step))
            wrong[candidate.name] += candidate.wrong()
            move()
    finally:
        gc.enable()
    everyone = job.comm.control.allgather((dict(spans), dict(wrong)), "times")
    results = {}
    for candidate in candidates:
        name = candidate.name
        of_ranks = [ranks[name][job.options.warmups :] for ranks, _ in everyone]
        results[name] = _result(job, candidate, of_ranks)
        results[name].wrong = sum(counts[name] for _, counts in everyone)
        job.wrong += results[name].wrong
    return results


def _turn(job: Job, candidate: Candidate, step: int) -> list[tuple[str, float]]:
    """Run one turn of a candidate; return its start, its phases and its end; collective."""
    candidate.prepare(step)
    marks = Marks()
    job.barrier()
    marks("start")

    def work() -> None:
        for _ in range(candidate.calls):
            candidate.run(marks)

    seconds = job.memory.timed(work)
    marks.times.append(("rest", marks.times[0][1] + seconds))
    return marks.times


def _result(job: Job, candidate: Candidate, of_ranks: list[list[Any]]) -> Result:
    """Combine the times of all ranks."""
    one_clock = job.comm.local_size == job.comm.size
    seconds, phases = [], defaultdict(list)
    for turns in zip(*of_ranks, strict=True):
        if one_clock:
            span = max(times[-1][1] for times in turns) - min(times[0][1] for times in turns)
        else:
            span = max(times[-1][1] - times[0][1] for times in turns)
        seconds.append(span / candidate.calls)
        sums: dict[str, float] = defaultdict(float)
        for times in turns:
            for (_, before), (phase, after) in pairwise(times):
                sums[phase] += (after - before) / len(turns) / candidate.calls
        for phase, each in sums.items():
            phases[phase].append(each)
    if list(phases) == ["rest"]:
        phases["all"] = phases.pop("rest")
    return Result(candidate.name, seconds, dict(phases))
