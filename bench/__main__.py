"""``python -m bench``: measure, check, print, and write the results.

Rank 0 prints the report at the end, with three sentences on top.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

import ncclkv
from bench import cases, libraries
from bench.job import Job
from bench.memory import GpuMemory, HostMemory
from bench.options import Options, parse
from bench.report import files, machine
from ncclkv.comm.base import Communicator
from ncclkv.comm.nccl import start as gpus
from ncclkv.comm.nccl.discovery import shared_gpus


def main(argv: Sequence[str] | None = None) -> int:
    """Run the selected parts; return exit status 1 when any element was wrong."""
    options = parse(argv, list(cases.HOST), list(cases.GPU), list(cases.BY_NAME))
    if os.environ.get("NCCLKV_EMULATED") == "1":
        print(
            "nothing is measured on an emulated device: its times are not those of a GPU",
            file=sys.stderr,
        )
        return 2
    comm = ncclkv.comm.world()
    if options.gpu:
        return _on_gpu(comm, options)
    return run(Job(comm, HostMemory(comm), options))


def _on_gpu(comm: Communicator, options: Options) -> int:
    """Run on the ranks' GPUs; without a GPU print the reason and fail if NCCLKV_REQUIRE_GPU=1."""
    facts = gpus.survey(comm)
    lacking = [each.obstacle for each in facts if each.obstacle]
    if lacking:
        if comm.rank == 0:
            print(f"nothing was measured on a GPU: {lacking[0]}")
        comm.close()
        return int(os.environ.get("NCCLKV_REQUIRE_GPU") == "1")
    ranks = gpus.launch(comm, facts)
    groups = shared_gpus(facts).values()
    sharing = max(map(len, groups), default=1)
    job = Job(ranks, GpuMemory(ranks, sharing), options)
    warnings = []
    if sharing > 1:
        line = "# RANKS SHARE A GPU: every bandwidth and every time below MEANS NOTHING."
        warnings = ["#" * 78, line, "#" * 78]
    return run(job, warnings)


def run(job: Job, warnings: Sequence[str] = ()) -> int:
    """Run the parts, print the report and write the files; return 1 if an element was wrong."""
    begin = time.perf_counter()
    with files.report(job, warnings):
        _measure(job)
        seconds = time.perf_counter() - begin
        job.record.update(wrong=job.wrong, seconds=seconds)
    verdict = f"FAILED: {job.wrong} elements were wrong" if job.wrong else "all numbers were right"
    job.print(f"# {verdict}; {seconds:.0f} s")
    job.comm.close()
    return int(job.wrong > 0)


def _measure(job: Job) -> None:
    """Find the libraries and run the parts."""
    job.record.update(machine.describe(job), options=_as_json(job.options))
    absent = libraries.find(job, libraries.GPU if job.options.gpu else libraries.HOST)
    _introduce(job, absent)
    parts = {**cases.HOST, **cases.GPU, **cases.BY_NAME}
    seconds_of = job.record["seconds_of_parts"] = {}
    for index, part in enumerate(job.options.parts, 1):
        job.tell(f"# part {index} of {len(job.options.parts)}: {part}")
        start = time.perf_counter()
        parts[part](job)
        seconds_of[part] = time.perf_counter() - start
    for library in job.libraries:
        library.close()


def _introduce(job: Job, absent: dict[str, str]) -> None:
    """Print the machine, the versions and the libraries that are measured."""
    here = job.record["machine"]
    job.record["libraries"] = {library.name: library.version for library in job.libraries}
    job.record["absent"] = absent
    job.print(
        f"# ncclkv {job.record['versions']['ncclkv']} ({job.record['commit']}): {job.comm.size} "
        f"ranks on {here['nodes']} node(s), {here['cores']} cores of {here['processor']}; "
        f"{job.comm.name}; host kernels in {job.record['host_kernels']}"
    )
    for library in job.libraries:
        job.print(f"# library {library.name}: {library.version}")
    for name, why in absent.items():
        job.print(f"# library {name} is absent: {why}")
    options = job.options
    job.print(
        f"# {options.rounds} rounds after {options.warmups} of warm-up; candidates take turns"
    )
    if options.quick:
        job.print("# QUICK: times are rough")
    if options.gpu and job.comm.size == 1:
        job.print("# One GPU: times are the store's own cost; no link between GPUs was measured.")
    if not options.gpu and job.comm.local_size > here["cores"]:
        job.print("# more ranks than cores: times include how ranks share them")
    job.print()


def _as_json(options: Options) -> dict[str, object]:
    """Return the options as values that JSON can hold."""
    return {name: str(value) if name == "out" else value for name, value in vars(options).items()}


if __name__ == "__main__":
    sys.exit(main())
