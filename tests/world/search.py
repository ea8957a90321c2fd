"""The search: one seed after another, until one fails or the time is over."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable
from dataclasses import dataclass

from tests.world.case import Case, case_of, run

_COLLECTED = 50
"""Seeds between two runs of the garbage collector, which is off in a world."""


@dataclass
class Report:
    """Counts of a search, and what it has found.

    Attributes
    ----------
    seeds, points : int
    virtual : float
        Seconds of the worlds' clocks.
    cpu : float
        Seconds of this process.
    failed : Case or None
    complaint : str
    """

    seeds: int = 0
    points: int = 0
    virtual: float = 0.0
    cpu: float = 0.0
    failed: Case | None = None
    complaint: str = ""

    def __str__(self) -> str:
        return (
            f"{self.seeds} seeds, {self.points} points, {self.virtual:.0f} s of the worlds' "
            f"clocks, {self.cpu:.1f} s of CPU"
        )


def search(seeds: Iterable[int], seconds: float, *, standin: bool = False) -> Report:
    """Run the cases of seeds for so long at most; stop at the first that fails."""
    report, begin, cpu = Report(), time.monotonic(), time.process_time()
    gc.collect()
    gc.freeze()
    for seed in seeds:
        if time.monotonic() - begin > seconds:
            break
        case = case_of(seed, standin=standin)
        finding = run(case)
        report.seeds += 1
        report.points += finding.world.points
        report.virtual += finding.world.seconds
        if finding.complaint:
            report.failed, report.complaint = case, finding.complaint
            break
        if report.seeds % _COLLECTED == 0:
            gc.collect()
    gc.unfreeze()
    report.cpu = time.process_time() - cpu
    return report
