"""Other libraries that sum arrays over ranks; those that start on every rank are measured."""

from __future__ import annotations

from collections.abc import Callable

from bench.job import Job
from bench.libraries.base import Absent, Library
from bench.libraries.cupyx_nccl import CupyxLibrary
from bench.libraries.mpi import MpiLibrary
from bench.libraries.raw_nccl import RawNcclLibrary
from bench.libraries.torch_dist import TorchLibrary

HOST: dict[str, Callable[[Job], Library]] = {"MPI": MpiLibrary, "Gloo": TorchLibrary}
GPU: dict[str, Callable[[Job], Library]] = {
    "NCCL": RawNcclLibrary,
    "cupyx": CupyxLibrary,
    "torch NCCL": TorchLibrary,
}


def find(job: Job, kinds: dict[str, Callable[[Job], Library]]) -> dict[str, str]:
    """Give the job all libraries that start on every rank; return why others do not."""
    absent = {}
    for name, make in kinds.items():
        library, problem = None, ""
        try:
            library = make(job)
        except Absent as error:
            problem = str(error)
        problems = job.comm.control.allgather(problem, f"is {name} present")
        if any(problems):
            absent[name] = next(filter(None, problems))
            if library is not None:
                library.close()
        elif library is not None:
            job.libraries.append(library)
    return absent
