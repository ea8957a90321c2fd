"""Plant faults, one after another, in a copy of the tree, and run the tests that must find them.

``python -m tests.mutants`` tries all, ``python -m tests.mutants NAME...`` the named ones.  A mutant
is killed when a test that it names fails.  An escaped mutant is found by all store cases on all
layouts of ranks, and not by the covering set of `tests.conformance.covering`.  A surviving mutant
shows code that no test checks.  A stale mutant quotes text that the code no longer has.  The exit
code is 0 only when all are killed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.mutants.mutant import LAYERS, Mutant, Selection
from tests.mutants.planted import MUTANTS
from tests.mutants.trial import KILLED, NOT_RUN, SURVIVED, copied, run, try_mutant

Chosen = list[tuple[Mutant, list[Selection]]]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("name", nargs="*", help="a mutant; all when none is named")
    parser.add_argument("--list", action="store_true", help="list them, and run nothing")
    parser.add_argument("--layer", choices=LAYERS, help="run tests of one layer alone")
    parser.add_argument("--sound", action="store_true", help="plant nothing: all tests must pass")
    options = parser.parse_args(arguments)
    if unknown := set(options.name) - {each.name for each in MUTANTS}:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    named = [each for each in MUTANTS if not options.name or each.name in options.name]
    layers = LAYERS if options.layer is None else (options.layer,)
    tests = [[each for each in mutant.tests if each.layer in layers] for mutant in named]
    chosen = [(mutant, some) for mutant, some in zip(named, tests, strict=True) if some]
    if options.list:
        for mutant, some in chosen:
            print(f"{mutant.name} ({mutant.file}): {mutant.why}")
            print(*(f"    layer {each.layer}: {each}" for each in some), sep="\n")
        return 0
    return check_soundness(chosen) if options.sound else try_all(chosen)


def try_all(chosen: Chosen) -> int:
    """Try mutants; return the exit code."""
    lines, counts = [], Counter[str]()
    width = max((len(mutant.name) for mutant, _ in chosen), default=0)
    with copied() as tree:
        for mutant, tests in chosen:
            begin = time.monotonic()
            verdict, detail, layer = try_mutant(mutant, tests, tree)
            seconds = time.monotonic() - begin
            lines.append(f"{mutant.name:{width}} {verdict:8} {layer:2} {seconds:4.0f} s  {detail}")
            counts[verdict] += 1
            print(f"{sum(counts.values())}/{len(chosen)} {mutant.name}: {verdict}", flush=True)
    print("\nmutant, verdict, layer, time, and the test that found it:", *lines, sep="\n")
    print("mutants:", ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return int(set(counts) != {KILLED})


def check_soundness(chosen: Chosen) -> int:
    """Run the tests on the code as it is; return the exit code."""
    said = {SURVIVED: "passed", KILLED: "FAILED", NOT_RUN: "NOT RUN"}
    verdicts = []
    with copied() as tree:
        for each in dict.fromkeys(each for _, tests in chosen for each in tests):
            verdict, detail = run(each, tree)
            verdicts.append(verdict)
            print(f"{said[verdict]:8} layer {each.layer:2} {detail}", flush=True)
    return int(set(verdicts) != {SURVIVED})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
