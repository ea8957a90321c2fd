"""Expected consequences of a fault: end of the job, time, the rank's name, and no wrong sum."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.faults.fault import HARMLESS, MISMATCHES, PAUSES, Fault
from tests.harness.job import Ended
from tests.harness.slow import stretched

DEADLINE = 3.0
"""Seconds that ranks wait for a rank that pauses; all other jobs have a far later deadline."""

SECONDS = stretched(10.0)
"""Seconds from the fault, or from the deadline after it, to the end of the job."""

_LINE = re.compile(r"^(?:\[\d+\] )?rank (\d+) (.*)$", re.MULTILINE)


def variables(fault: Fault) -> dict[str, str]:
    """Return the environment of the job with the fault."""
    deadline = DEADLINE if fault.kind in PAUSES else stretched(60.0)
    return {**fault.variables, "NCCLKV_TIMEOUT": f"{deadline:g}"}


def failures(fault: Fault, ended: Ended) -> list[str]:
    """Return the expectations that failed, as sentences."""
    ranks = {int(rank): text for rank, text in _LINE.findall(ended.out)}
    found = [f"rank {rank} {text}" for rank, text in ranks.items() if "WRONG" in text]
    if fault.kind in HARMLESS:
        found += [] if ended.code == 0 else [f"the exit code is {ended.code}, not 0"]
        wells = [rank for rank, text in ranks.items() if text == "ends well"]
        missing = set(range(fault.ranks)) - set(wells)
        return found + [f"rank {rank} does not end well" for rank in sorted(missing)]
    found += [] if ended.code else ["the exit code is 0"]
    limit = SECONDS + (DEADLINE if fault.kind in PAUSES else 0)
    if ended.seconds > limit:
        found.append(f"the job ends {ended.seconds:.1f} s after the fault, not within {limit:g} s")
    found += [f"rank {rank} ends well" for rank, text in ranks.items() if text == "ends well"]
    return found + _unnamed(fault, ended, ranks)


def _unnamed(fault: Fault, ended: Ended, ranks: dict[int, str]) -> list[str]:
    """Return the outputs that should name the failed rank and do not."""
    if fault.kind in MISMATCHES:
        return _raised(fault, ranks, range(fault.ranks), "OrderMismatch")
    if fault.kind in PAUSES:
        others = [rank for rank in range(fault.ranks) if rank != fault.victim]
        return _raised(fault, ranks, others, "CommTimeout|RankLost")
    if fault.run:
        first = ended.err[ended.err.find("ncclkv run: ") :].splitlines()[0:1]
        if not first or f"rank {fault.victim} " not in first[0]:
            return [f"the report does not name rank {fault.victim}: {first}"]
        return []
    # mpirun alone ends the others before they can write when a process ends by a signal or at once.
    if fault.kind in ("raise", "exit") and not any(
        f"rank {fault.victim} " in line for line in ended.words
    ):
        return [f"no line of ncclkv names rank {fault.victim}"]
    return []


def _raised(fault: Fault, ranks: dict[int, str], who: Iterable[int], kinds: str) -> list[str]:
    """Return the ranks that did not raise an error that names the failed rank."""
    expected = re.compile(rf"raises ({kinds}): .*\brank {fault.victim}\b")
    return [
        f"rank {rank} does not raise {kinds} that names rank {fault.victim}: {ranks.get(rank)!r}"
        for rank in who
        if not expected.match(ranks.get(rank, ""))
    ]
