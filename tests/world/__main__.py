"""``python -m tests.world [--seeds A:B] [--seconds S] [--replay SEED]``: random seeded worlds."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.world.case import Case, case_of, run
from tests.world.search import search
from tests.world.shrink import shrunk

_LINES = 300
"""Lines of the trace of a case that the search has found."""

_SEEDS = 10**9
"""Seeds from the first one on, if the last one is not given."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("--seeds", default="", metavar="A:B", help="default: new ones each time")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the search (60)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="print the trace of a seed")
    parser.add_argument("--no-shrink", action="store_true", help="report the seed as it is")
    parser.add_argument("--standin", action="store_true", help="on the stand-in of NCCL")
    given = parser.parse_args(arguments)
    if given.replay is not None:
        return replay(case_of(given.replay, standin=given.standin))
    first, last = _range(given.seeds)
    print(f"seeds {first}:{last}, at most {given.seconds:g} s", flush=True)
    report = search(range(first, last), given.seconds, standin=given.standin)
    print(f"{first}:{first + report.seeds}: {report}", flush=True)
    if report.failed is None:
        return 0
    print(f"\nseed {report.failed.seed} fails: {report.complaint}\n", flush=True)
    return replay(report.failed if given.no_shrink else shrunk(report.failed), _LINES)


def replay(case: Case, lines: int = 0) -> int:
    """Run a case, print its trace, its program and its complaint, and return the exit code.

    The trace is printed whole, or its last lines, where a count is given.
    """
    finding = run(case, keep_trace=True)
    trace = finding.world.trace
    if lines and len(trace) > lines:
        print(f"... {len(trace) - lines} lines before; all of them: --replay {case.seed}")
    print("\n".join(trace[-lines:]))
    print(f"\n{case}\n\nSHA-256 of the trace: {finding.world.sha256}")
    print(finding.complaint or "nothing is wrong")
    return 1 if finding.complaint else 0


def _range(text: str) -> tuple[int, int]:
    """Return the first seed, and the one after the last."""
    first, _, last = text.partition(":")
    begin = int(first) if first else int(time.time()) * 10_000
    return begin, int(last) if last else begin + _SEEDS


if __name__ == "__main__":
    sys.exit(main())
