"""A step between nodes by the bytes that it sends: gradients of float32, and of fewer bits.

On one node nothing is sent, and the table shows what fewer bits cost there.  `bench.slow_link` runs
this part on hosts with slow links.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from socket import gethostname
from typing import Any

import numpy as np

from bench.candidates.baselines import Flat, cut
from bench.candidates.store import Compressed, Lists, Views
from bench.cases.models import BUCKET_BYTES
from bench.data import Products, Signs, Sum
from bench.job import Job
from bench.models import MODELS, elements
from bench.report import table
from bench.report.units import size_text
from bench.rounds import Candidate, Marks, take_turns
from bench.workload import Workload

PLAIN = "float32"

DTYPES = (PLAIN, "float16")
"""Dtypes of the keys that are compared."""

CODECS: tuple[dict[str, Any], ...] = (
    {"type": "2bit", "threshold": 1.0},
    {"type": "1bit", "threshold": 0.0},
    {"type": "fp16"},
    {"type": "topk", "ratio": 0.01},
    {"type": "powersgd", "rank": 2, "start_powerSGD_iter": 0},
)
"""Codecs of float32 keys that are compared."""

COPIES = 6
"""Copies of a model's bytes in memory for each dtype, on every rank."""

SPARSE = 256
"""Gradients of topk of which one is not 0: topk then sends all that are not."""

DRAIN_SECONDS = 0.05
"""Seconds after a turn in which the last bytes leave the queue of a slow link."""

_INTERFACES = Path("/proc/net/dev")


class Counted(Candidate):
    """A candidate of a store, with the bytes that this rank and its host send.

    Attributes
    ----------
    turns : int
    reported, counted : int
        Bytes of all turns: as the store reports them, and as the host's interfaces count them.
    """

    def __init__(self, candidate: Lists) -> None:
        self.name = candidate.name
        self.turns = self.reported = self.counted = 0
        self._candidate = candidate
        self._begin = self._bytes()

    def prepare(self, step: int) -> None:
        self._candidate.prepare(step)
        self._begin = self._bytes()

    def run(self, mark: Marks) -> None:
        self._candidate.run(mark)

    def wrong(self) -> int:
        time.sleep(DRAIN_SECONDS)
        pairs = zip(self._bytes(), self._begin, strict=True)
        reported, counted = (now - then for now, then in pairs)
        self.turns += 1
        self.reported += reported
        self.counted += counted
        return self._candidate.wrong()

    def _bytes(self) -> tuple[int, int]:
        """Return the bytes sent so far by the store's count, and by that of the interfaces."""
        buckets = self._candidate.kv.metrics()["buckets"].values()
        return sum(each["wire_bytes"] for each in buckets), interface_bytes()


def interface_bytes() -> int:
    """Return the bytes that the network interfaces of this host have sent, without loopback."""
    lines = [line.split(":") for line in _INTERFACES.read_text().splitlines() if ":" in line]
    return sum(int(counts.split()[8]) for name, counts in lines if name.strip() != "lo")


def run(job: Job) -> None:
    """Measure the step of a model's keys with each dtype; collective."""
    shapes = MODELS[job.options.models[-1]]()
    nbytes = 4 * elements(shapes)
    what = f"a step of {len(shapes)} keys, {size_text(nbytes)} as float32"
    codecs = [*CODECS, *_codecs_of_nodes(job)]
    if not job.fits(what, (len(DTYPES) + len(codecs)) * COPIES * nbytes):
        return
    with contextlib.ExitStack() as stores:
        steps = []
        for dtype in DTYPES:
            work = Workload(job, shapes)
            work.gradients = [np.empty(shape, dtype) for shape in work.shapes]
            work.outs = [np.empty(shape, dtype) for shape in work.shapes]
            kv = stores.enter_context(job.store())
            kv.init(work.names, work.gradients)
            expected = Sum(job.comm.size)
            steps.append(Counted(Lists(work, kv, expected, dtype)))
            if dtype == PLAIN:
                steps.append(Counted(Views(work, kv, expected, f"{dtype}, grad_view and value")))
        given_to = {"topk": Signs(np, SPARSE), "powersgd": Products(np)}
        signs = Signs(np)
        for codec in codecs:
            coded = Workload(job, shapes)
            kv = stores.enter_context(job.store())
            kv.set_gradient_compression(codec)
            kv.init(coded.names, coded.gradients)
            sender = ", scope node" if "scope" in codec else ""
            name = f"compressed, {codec['type']}{sender}"
            given = given_to.get(codec["type"], signs)
            steps.append(Counted(Compressed(coded, kv, given, name)))
        results = take_turns(job, what, [*steps, *_gloo(job, work)])
        table.table(job, what, results, nbytes, PLAIN)
        _compare_bytes(job, steps)


def _codecs_of_nodes(job: Job) -> list[dict[str, Any]]:
    """Return codecs whose senders are nodes, if there are several of as many ranks each.

    The threshold is the size of the sums of a node, of elements that are 1 or -1.
    """
    sizes = [len(ranks) for ranks in job.comm.nodes or ()]
    if len(sizes) > 1 and 1 < min(sizes) == max(sizes):
        two_bit = {"type": "2bit", "threshold": float(sizes[0]), "scope": "node"}
        others = {"type": "fp16"}, {"type": "topk", "ratio": 0.01}
        return [two_bit, *({**codec, "scope": "node"} for codec in others)]
    return []


def _gloo(job: Job, work: Workload) -> list[Candidate]:
    """Return Gloo's sums of a flat array of float32, if torch is installed."""
    found: list[Candidate] = []
    for library in job.libraries:
        if library.name == "Gloo":
            flat = job.memory.empty(sum(array.size for array in work.gradients))
            chunks, name = cut(flat, BUCKET_BYTES), f"{library.name}, flat 25 MiB buckets"
            expected = Sum(job.comm.size)
            found.append(Flat(work, library, chunks, work.views(flat), expected, name))
    return found


def _compare_bytes(job: Job, steps: Sequence[Counted]) -> None:
    """Print the bytes that the first host sends in a step; collective.

    If each host has one rank, the store reports only what goes through the interfaces.
    """
    comm = job.comm
    for step in steps:
        mine = (gethostname(), step.reported, step.counted)
        everyone = comm.control.allgather(mine, "bytes sent")
        reported = sum(each for host, each, _ in everyone if host == everyone[0][0]) / step.turns
        counted = everyone[0][2] / step.turns
        job.print(
            f"# {step.name}: the first host sends {reported / 1e6:.2f} MB a step by the store's "
            f"count, {counted / 1e6:.2f} MB by that of its network interfaces"
        )
        if 1 == comm.local_size < comm.size and counted < 0.99 * reported:
            raise RuntimeError(f"{step.name}: {reported} bytes are reported, {counted} were sent")
        job.record.setdefault("wire", []).append(
            {"name": step.name, "reported": reported, "counted": counted}
        )
    job.print()
