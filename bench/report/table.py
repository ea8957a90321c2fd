"""Tables of candidates, and ratios."""

from __future__ import annotations

from collections.abc import Sequence

from bench.job import Job
from bench.report.names import library_of
from bench.rounds import Result


def table(
    job: Job, title: str, results: dict[str, Result], nbytes: int, against: str | None = None
) -> None:
    """Print and record the results of candidates that did the same work on `nbytes` bytes.

    Parameters
    ----------
    against : str, optional
        The name of the candidate that ratios are taken to.
    """
    unit, scale = _unit(results)
    job.print(f"# {title}")
    job.print(
        f"# {'candidate':<40} {'median':>8} {'min':>8} {'max':>8}  {'GB/s':>6} {'ratio':>7} "
        f"{'#wrong':>7}  phases"
    )
    job.print(f"# {'':<40} {unit:>8} {unit:>8} {unit:>8}")
    base = results[against].median if against else None
    for name, found in results.items():
        ratio = f"{found.median / base:7.3f}" if base else f"{'-':>7}"
        times = " ".join(
            f"{each * scale:8.2f}"
            for each in (found.median, min(found.seconds), max(found.seconds))
        )
        job.print(
            f"  {name:<40} {times}  {nbytes / found.median / 1e9:6.2f} {ratio} {found.wrong:7d}"
            f"  {_phases(found, scale)}"
        )
    if against:
        job.print(f"# ratio: median over that of {against!r}")
    job.print()
    job.record.setdefault("tables", []).append(
        {
            "title": title,
            "bytes": nbytes,
            "against": against,
            "results": [found.summary() for found in results.values()],
        }
    )


def matrix(job: Job, results: dict[str, Result], ours: Sequence[str]) -> None:
    """Print the time of each of our candidates over the time of each baseline."""
    others = [name for name in results if name not in ours]
    job.print("# our time over theirs")
    for index, name in enumerate(others, 1):
        job.print(f"#  ({index}) {name}")
    job.print(
        "# " + " " * 40 + "".join(f"{f'({index})':>8}" for index in range(1, len(others) + 1))
    )
    for candidate in ours:
        ratios = (results[candidate].median / results[name].median for name in others)
        job.print(f"  {candidate:<40}" + "".join(f"{each:8.3f}" for each in ratios))
    job.print()


def _unit(results: dict[str, Result]) -> tuple[str, float]:
    """Return the unit of a table: milliseconds, or microseconds for short times."""
    longest = max(found.median for found in results.values())
    return ("(us)", 1e6) if longest < 2e-3 else ("(ms)", 1e3)


def _phases(found: Result, scale: float) -> str:
    """Format phases as ``push 3.20, pull 4.00``; a negligible rest is left out."""
    names = [
        name
        for name in found.phases
        if name != "all" and (name != "rest" or found.phase(name) > 0.01 * found.median)
    ]
    return ", ".join(f"{name} {found.phase(name) * scale:.2f}" for name in names)


def floor(
    job: Job, work: str, value: float, bound: float, *, least: bool = False, unit: str = ""
) -> None:
    """Print a figure, record it beside its bound, and print the bound if ``--floors`` is set.

    A missed bound is no failure.
    """
    met = value >= bound if least else value <= bound
    word = "least" if least else "most"
    verdict = "met" if met else "not met"
    shown = f"  floor: at {word} {bound:g}{unit}  {verdict}" if job.options.floors else ""
    job.print(f"  {value:8.3f}{unit}  {work}{shown}")
    job.record.setdefault("floors", []).append(
        {"work": work, "value": value, "unit": unit, "bound": bound, "at": word, "met": met}
    )


def ratio(
    job: Job,
    work: str,
    results: dict[str, Result],
    ours: str,
    baselines: Sequence[str],
    bound: float | None = None,
) -> None:
    """Print and record our median over the best baseline's, with a bound on hosts.

    Parameters
    ----------
    work : str
        What was done, as a sentence of the report begins, such as "a step of ResNet-50".
    """
    present = [name for name in baselines if name in results]
    if not present:
        job.print(f"  {'-':>8}  {work}: there is nothing here to compare with")
        return
    best = min(present, key=lambda name: results[name].median)
    value = results[ours].median / results[best].median
    text = f"{work.rstrip(',')}: {ours} / {best}"
    if job.options.gpu or bound is None:
        job.print(f"  {value:8.3f}  {text}")
    else:
        floor(job, text, value, bound)
    library = library_of(best, [each.name for each in job.libraries])
    found = {"work": work, "ours": ours, "beside": best, "library": library, "value": value}
    found["seconds"] = results[ours].median
    job.record.setdefault("ratios", []).append(found)
