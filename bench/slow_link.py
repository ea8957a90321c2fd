"""``python -m bench.slow_link``: the part ``wire`` on hosts whose links are slow.

The hosts are network namespaces of this machine, which share no memory (`tests.hosts.lab`).  Both
ends of each link are shaped by ``tc``.  The processors are those of this machine, so arithmetic
takes longer than on so many hosts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.hosts.lab.jobs import Jobs
from tests.hosts.lab.network import Network, missing

MBIT = 1000
"""Megabits in a second of the slow links."""

LIMIT = 900.0
"""Seconds for a job."""


class HostLayout(NamedTuple):
    """Hosts, ranks of each, and whether their links are slow."""

    hosts: int
    ranks: int
    slow: bool = True

    def __str__(self) -> str:
        link = f"{MBIT / 1000:g} Gbit/s" if self.slow else "unshaped links"
        place = f"{self.hosts} hosts" if self.hosts > 1 else "1 host"
        return f"{place} x {self.ranks}, {link}" if self.hosts > 1 else f"{place} x {self.ranks}"


LAYOUTS = (
    HostLayout(2, 1),
    HostLayout(4, 1),
    HostLayout(2, 2),
    HostLayout(2, 1, slow=False),
    HostLayout(1, 2, slow=False),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run each layout and print its table; return 1 when a job failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.slow_link", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each candidate")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder of the JSON")
    given = parser.parse_args(argv)
    obstacle = missing() or ("" if shutil.which("tc") else "no tc on PATH (Debian: iproute2)")
    if obstacle:
        print(f"# slow-link is left out: {obstacle}")
        return 0
    failed = False
    for layout in LAYOUTS:
        record = _measure(layout, given.rounds, given.out)
        if record is None:
            failed = True
        else:
            print("\n".join(lines(layout, record)), flush=True)
    return int(failed)


def _measure(layout: HostLayout, rounds: int, out: Path) -> dict[str, Any] | None:
    """Run the part on a layout; return its record, or None if the job failed."""
    with (
        Network(layout.hosts) as network,
        tempfile.TemporaryDirectory(dir=network.folder) as folder,
    ):
        if layout.slow:
            _shape(network)
        jobs = Jobs(network, layout.ranks)
        line = (
            *jobs.mpirun,
            sys.executable,
            "-m",
            "bench",
            "--only",
            "wire",
            "--models",
            "ResNet-50",
        )
        line = (*line, "--rounds", str(rounds), "--out", folder)
        ended = jobs.run(*line, limit=LIMIT, GLOO_SOCKET_IFNAME="eth0")
        files = [*Path(folder).glob("*.json")]
        if ended.code or not files:
            print(f"# {layout} failed with exit code {ended.code}:\n{ended.out}{ended.err}")
            return None
        text = files[0].read_text()
    out.mkdir(parents=True, exist_ok=True)
    name = str(layout).replace(" ", "-").replace("/", "-").replace(",", "")
    (out / f"slow-link-{name}-{files[0].name}").write_text(text)
    record: dict[str, Any] = json.loads(text)
    return record


def _shape(network: Network) -> None:
    """Make all links slow, in both directions: a qdisc delays what its interface sends."""
    for host in network.hosts:
        for machine, device in ((host, "eth0"), (network.login, host.name)):
            shaping = ("tbf", "rate", f"{MBIT}mbit", "burst", "256kb", "latency", "100ms")
            machine.run("tc", "qdisc", "add", "dev", device, "root", *shaping)


def lines(layout: HostLayout, record: dict[str, Any]) -> list[str]:
    """Return the table of a layout: times, and the worst of the ratios of turns to float32's."""
    table = record["tables"][0]
    base = next(each for each in table["results"] if each["name"] == table["against"])
    sent = {each["name"]: each for each in record["wire"]}
    found = [
        f"# {layout}: {table['title']}",
        f"# {'candidate':<32} {'median (ms)':>12} {'faster':>8} {'at worst':>9} {'MB sent':>9}",
    ]
    for each in table["results"]:
        pairs = zip(base["seconds"], each["seconds"], strict=True)
        worst = min(plain / narrow for plain, narrow in pairs)
        moved = (
            f"{sent[each['name']]['counted'] / 1e6:9.2f}" if each["name"] in sent else f"{'-':>9}"
        )
        found.append(
            f"  {each['name']:<32} {each['median'] * 1e3:12.1f} "
            f"{base['median'] / each['median']:8.2f} {worst:9.2f} {moved}"
        )
    return [*found, ""]


if __name__ == "__main__":
    sys.exit(main())
