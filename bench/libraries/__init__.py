"""Other libraries that can sum arrays over ranks: those that are here, and why others are not."""

from __future__ import annotations

from collections.abc import Callable

from bench.job import Job
from bench.libraries.base import Absent, Peer
from bench.libraries.cupyx_nccl import CupyxPeer
from bench.libraries.mpi import MpiPeer
from bench.libraries.raw_nccl import RawNcclPeer
from bench.libraries.torch_dist import TorchPeer

HOST: dict[str, Callable[[Job], Peer]] = {"MPI": MpiPeer, "Gloo": TorchPeer}
GPU: dict[str, Callable[[Job], Peer]] = {
    "NCCL": RawNcclPeer,
    "cupyx": CupyxPeer,
    "torch NCCL": TorchPeer,
}


def find(job: Job, kinds: dict[str, Callable[[Job], Peer]]) -> dict[str, str]:
    """Give the job the peers that start on every rank; return why others are absent, by name."""
    absent = {}
    for name, make in kinds.items():
        peer, problem = None, ""
        try:
            peer = make(job)
        except Absent as error:
            problem = str(error)
        problems = job.comm.control.allgather(problem, f"is {name} present")
        if any(problems):
            absent[name] = next(filter(None, problems))
            if peer is not None:
                peer.close()
        elif peer is not None:
            job.peers.append(peer)
    return absent
