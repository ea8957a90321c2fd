"""Allreduce over sizes, ours and the peers', in turns."""

from __future__ import annotations

import statistics

import numpy as np

from bench.data import addend, total
from bench.job import Job
from bench.libraries.base import Ours, Peer
from bench.options import KIB, MIB
from bench.raw.measure import sizes
from bench.rounds import Candidate, Marks, Result, take_turns
from ncclkv.comm.types import Buffer


class OneSum(Candidate):
    """A sum of one array into another; torch, which has none such, copies first."""

    def __init__(self, job: Job, peer: Peer, send: Buffer, receive: Buffer, calls: int) -> None:
        self.name = peer.name
        self.calls = calls
        self._job = job
        self._peer = peer
        self._send = send
        self._receive = receive

    def prepare(self, step: int) -> None:
        self._step = step
        self._job.pattern.fill(self._send, addend(self._job.comm.rank, step))
        self._receive.fill(np.nan)

    def run(self, mark: Marks) -> None:
        self._peer.start(self._send, self._receive)()

    def wrong(self) -> int:
        size = self._job.comm.size
        return self._job.pattern.wrong(self._receive, size, total(size, self._step))


def run(job: Job) -> None:
    peers = [Ours(job.comm), *job.peers]
    nominal = sizes(job.options.max_bytes, job.options.factor)
    space = job.place.bucket(nominal[-1] // 4), job.place.bucket(nominal[-1] // 4)
    job.say("# allreduce over sizes, out of place: median time in us, and #wrong of all ranks")
    job.say("# " + f"{'size':>10}" + "".join(f"  {peer.name:>12} #wrong" for peer in peers))
    rows = []
    for nbytes in nominal:
        rows.append((nbytes, _one_size(job, peers, nbytes, space)))
        cells = (f"  {each.median * 1e6:12.2f} {each.wrong:6d}" for each in rows[-1][1].values())
        job.say(f"  {nbytes:10d}" + "".join(cells))
    job.say()
    job.record["sizes"] = [
        {
            "bytes": nbytes,
            "median": {name: each.median for name, each in found.items()},
            "wrong": sum(each.wrong for each in found.values()),
        }
        for nbytes, found in rows
    ]
    if len(peers) > 1:
        _crossover(job, rows)


def _one_size(
    job: Job, peers: list[Peer], nbytes: int, space: tuple[Buffer, Buffer]
) -> dict[str, Result]:
    """All peers on arrays of one size, which they share."""
    send, receive = (buffer[: nbytes // 4] for buffer in space)
    calls = 20 if nbytes <= 64 * KIB else 5 if nbytes <= MIB else 1
    candidates = [OneSum(job, peer, send, receive, calls) for peer in peers]
    return take_turns(job, "", candidates)


def _crossover(job: Job, rows: list[tuple[int, dict[str, Result]]]) -> None:
    """Say how many sizes each was the fastest at, and our time over the best peer's."""
    fastest = [min(found.values(), key=lambda each: each.median).name for _, found in rows]
    ratios = []
    for _, found in rows:
        ours, *others = found.values()
        ratios.append(ours.median / min(each.median for each in others))
    wins = ", ".join(f"{name} at {fastest.count(name)}" for name in dict.fromkeys(fastest))
    job.say(
        f"# fastest: {wins} of {len(rows)} sizes; our time over the best peer's: median "
        f"{statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
    )
    job.say()
