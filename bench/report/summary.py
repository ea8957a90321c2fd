"""Three plain sentences about a run, the first lines of its report.

The first names what was compared, and where.  The second has a step beside other libraries, and the
third the sums over sizes.  Where a run lacks these, the comparison with another library in which
ncclkv fares worst takes their place, of those that are not told yet, and then what else was
measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.report.machine import place
from bench.report.names import label
from bench.report.units import size_text

Record = Mapping[str, Any]

OURS = "ncclkv"
STEPS = ("a step of ", "a training step of ")
"""Beginnings of the work that a user would name first."""

NOTHING = "This run compares nothing else."


def sentences(record: Record) -> list[str]:
    """Return three sentences about a finished run."""
    said = [*_steps(record), *_sizes(record), *_worst(record), *_own(record), *_others(record)]
    return [*dict.fromkeys([_setting(record), *said]), NOTHING, NOTHING][:3]


def _setting(record: Record) -> str:
    """Name the candidates, the ranks and the machine, and whether all numbers were right."""
    names = _all([label(name, record["libraries"]) for name in record["libraries"]])
    beside = f"was compared with {names}" if names else "was measured beside no other library"
    right = "all numbers were right"
    if record["wrong"]:
        right = f"{record['wrong']:,} NUMBERS WERE WRONG"
    rough = " in a quick run, whose times are rough" if record["options"]["quick"] else ""
    return f"{OURS} {record['versions'][OURS]} {beside} by {place(record)}{rough}; {right}."


def _steps(record: Record) -> Iterator[str]:
    """Compare a step with those of all libraries that made the same one."""
    work = _step(record)
    found = [_time(each, record) for each in _beside(record) if each["work"] == work]
    if found:
        yield _capital(f"{work} took {_all(found)}.")


def _step(record: Record) -> str | None:
    """Return the first work beside other libraries that is a step."""
    works = [each["work"] for each in _beside(record)]
    return next((work for begin in STEPS for work in works if work.startswith(begin)), None)


def _sizes(record: Record) -> Iterator[str]:
    """Compare sums of ordinary arrays with those of each library, over all sizes."""
    rows, libraries = record.get("sizes", []), record["libraries"]
    if not rows or not libraries:
        return
    parts = []
    for name in libraries:
        ratios = [row["median"][OURS] / row["median"][name] for row in rows]
        worst = max(range(len(rows)), key=ratios.__getitem__)
        longer = sum(each > 1 for each in ratios)
        where = f"{longer} of {len(rows)} sizes, most at {size_text(rows[worst]['bytes'])}"
        said = f"longer at {where}" if longer else "never longer"
        span = f"{_number(min(ratios))} to {_number(max(ratios))}"
        parts.append(f"{span} times {_whose(name, record)} time ({said})")
    span = f"{size_text(rows[0]['bytes'])} to {size_text(rows[-1]['bytes'])}"
    yield f"Sums of ordinary arrays of {span} took {_all(parts)}."


def _worst(record: Record) -> Iterator[str]:
    """Name the comparison, other than of the step, in which ncclkv fares worst."""
    found = [each for each in _beside(record) if each["work"] != _step(record)]
    if found:
        worst = max(found, key=lambda each: each["value"])
        text = f"{worst['work']} took {_time(worst, record)} ({worst['ours']})."
        many = f"The least favourable of {len(found)} other comparisons: {text}"
        yield many if len(found) > 1 else _capital(text)


def _own(record: Record) -> Iterator[str]:
    """Compare the ways in which ncclkv does the same work."""
    for each in record.get("ratios", []):
        if each["library"] is None:
            value = each["value"]
            yield _capital(f"{each['work']} took {value:.3f} of the time of {each['beside']!r}.")


def _others(record: Record) -> Iterator[str]:
    """Say what tables without ratios have found."""
    for table in record.get("tables", []):
        medians = {each["name"]: each["median"] for each in table["results"]}
        base, last = table["against"], list(medians)[-1]
        if base in medians and last != base:
            ratio = medians[last] / medians[base]
            yield _capital(f"{table['title']}: {last!r} took {ratio:.2f} of the time of {base!r}.")
    for table in record.get("raw", []):
        speed = table["average_bus_bandwidth"]["bandwidth"]
        yield f"The bus bandwidth of {table['name']} was {speed:.2f} GB/s on average over sizes."
    for row in record.get("memory", [])[-1:]:
        whole, one = size_text(row["total"]), size_text(row["rank"])
        yield f"Stores of {row['ranks']} ranks took {whole}, and {one} on one rank ({row['name']})."
    for each in record.get("floors", []):
        yield _capital(f"{each['work']}: {each['value']:.3f}{each['unit']}.")


def _beside(record: Record) -> list[Mapping[str, Any]]:
    """Return the comparisons with other libraries."""
    return [each for each in record.get("ratios", []) if each["library"] is not None]


def _time(ratio: Mapping[str, Any], record: Record) -> str:
    """Return a ratio as words."""
    word = "of" if ratio["value"] < 1 else "times"
    return f"{_number(ratio['value'])} {word} {_whose(ratio['library'], record)} time"


def _whose(library: str, record: Record) -> str:
    return f"{label(library, record['libraries'])}'s"


def _all(parts: Sequence[str]) -> str:
    """Join parts by commas and "and"."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def _number(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio > 0.1 else f"{ratio:.2g}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
