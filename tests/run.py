"""Run the whole test suite: pytest in this process's Python, then in jobs of 1 to 4 ranks.

``python -m tests.run`` runs all that need no GPU, ``python -m tests.run unit ranks-3`` some,
``python -m tests.run gpu`` all that need one, and ``python -m tests.run emulated`` these in layer
3b, on an emulated device; ``emulated-few`` is a part of them.  Each run has a time limit of its
own; after one that failed or was stopped the others still run.  A test that ends its process, past
its own limit or by a crash, fails alone: pytest is started again behind it.  The last lines say how
each went.  The exit code is 0 only when all passed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.harness import leftovers, rounds
from tests.harness.slow import stretched
from tests.nccl import gpu

ROOT = Path(__file__).resolve().parent.parent
ON_GPU = (
    "tests/ranks/test_gpu_comm.py",
    "tests/ranks/test_gpu_store.py",
    "tests/ranks/test_gpu_capture.py",
)
ALONE_ON_GPU = (
    "tests/nccl/test_gpu_errors.py",
    "tests/nccl/test_gpu_first.py",
    "tests/nccl/test_gpu_kernels.py",
)
SEVERAL_GPUS = ("tests/nccl/test_gpu_several.py", "tests/nccl/test_arrays_gpus.py")
INSIDE = (sys.executable, "-m", "tests.nccl.emulated")
"""What stands before a command that is to run in layer 3b."""

LONG = (
    "test_checkpoints",
    "test_injected",
    "test_kernel_arithmetic",
    "test_kernel_sources",
    "test_kernels",
    "test_little_memory",
    "test_lost_ranks",
    "test_mixed",
    "test_nccl_faults",
    "test_nccl_life",
    "test_no_memory",
    "test_silent",
    "test_stores_in_a_loop",
    "test_train",
)
"""Files of layer 3b that take long: jobs of their own, and many kernels to compile."""

ON_NODES = (
    "tests/ranks/test_comm_conformance.py",
    "tests/ranks/test_store_cases.py",
    "tests/ranks/test_programs.py",
    "tests/ranks/test_store_comm.py",
)
ON_WAYS = (
    "tests/ranks/test_node_memory.py",
    "tests/ranks/test_comm_conformance.py",
    "tests/ranks/test_store_cases.py",
    "tests/ranks/test_programs.py",
)
CONTRACT = ("tests/ranks/test_comm_contract.py", "tests/ranks/test_capture_contract.py")
GRACE = 10.0
"""Seconds that a run has to end after it is told to."""


@dataclass(frozen=True)
class Run:
    """One command of the suite, and the seconds it may take."""

    name: str
    command: tuple[str, ...]
    limit: float


def suite() -> list[Run]:
    """All runs, in order."""
    pytest = (sys.executable, "-m", "pytest")
    runs = [
        Run("unit", (*pytest, "--durations=20", "tests/unit"), 1200),
        Run("doctests", (*pytest, "--doctest-modules", "ncclkv"), 60),
        Run("harness", (*pytest, "tests/harness"), 180),
        Run("jobs", (*pytest, "tests/jobs"), 480),
        Run("chaos", (*pytest, "tests/chaos"), 300),
        Run("faults", (*pytest, "tests/faults"), 300),
        # Without root it says so, and tests nothing.
        Run("hosts", (*pytest, "--durations=20", "tests/hosts"), 600),
        # Without CuPy it says so, and tests the little that needs none.
        Run("nccl", (*pytest, "tests/nccl"), 900),
    ]
    for size in (1, 2, 3, 4):
        job = ("launch/local.sh", "-n", str(size), "-m", "pytest", "tests/ranks")
        runs.append(Run(f"ranks-{size}", job, 240))
    split = ("env", "NCCLKV_RANKS_PER_NODE=2")
    for size in (3, 4):
        job = ("launch/local.sh", "-n", str(size), "-m", "pytest", *ON_NODES)
        runs.append(Run(f"nodes-{size}", (*split, *job), 240))
    job = ("launch/local.sh", "-n", "4", "-m", "pytest", *ON_WAYS)
    # One placement of the store's cases, which are those of ranks-4.
    few = ("-k", "not test_ranks or every_rank")
    runs.append(Run("halves-4", ("env", "NCCLKV_NODE_MEMORY=halves", *job, *few), 240))
    # The others use the kernels in C, where those are built.
    job = ("launch/local.sh", "-n", "4", "-m", "pytest", *ON_NODES)
    runs.append(Run("plain-4", ("env", "NCCLKV_COMPILED=0", *job), 240))
    return runs


def by_name() -> list[Run]:
    """All runs that must be asked for: on a GPU, in layer 3b, parts of others, the oldest NumPy."""
    contract = ("launch/local.sh", "-n", "3", "-m", "pytest", *CONTRACT)
    return [
        *gpu_suite(),
        *emulated_suite(),
        *emulated_few(),
        Run("nccl-ranks", contract, 240),
        # It makes an environment of its own, and so needs a network the first time.
        Run("oldest", ("launch/oldest.sh",), 600),
    ]


def gpu_suite() -> list[Run]:
    """All runs on a GPU, which the ranks share, in order."""
    pytest = (sys.executable, "-m", "pytest")
    runs = [Run("gpu-kernels", (*pytest, *ALONE_ON_GPU), 600)]
    for size in (1, 2, 3, 4):
        share = ("env", "NCCLKV_SHARE_GPU=1") if size > 1 else ()
        job = ("launch/local.sh", "-n", str(size), "-m", "pytest", *ON_GPU)
        runs.append(Run(f"gpu-{size}", (*share, *job), 600))
    runs.append(Run("gpu-faults", (*pytest, "tests/nccl/test_gpu_faults.py"), 600))
    return runs


def emulated_suite() -> list[Run]:
    """All runs of layer 3b: its own rules, then the runs on a GPU as they are."""
    pytest = (sys.executable, "-m", "pytest")
    several = ("env", "EMULATED_DEVICES=4", *pytest, *SEVERAL_GPUS)
    runs = [
        Run("rules", (*pytest, "tests/nccl/emulated"), 600),
        *(replace(run, limit=1800) for run in gpu_suite()),
        Run("gpu-several", several, 300),
    ]
    return [_inside(run) for run in runs]


def emulated_few() -> list[Run]:
    """The part of layer 3b that takes three minutes at most."""
    pytest = (sys.executable, "-m", "pytest")
    ranks = ("launch/local.sh", "-n")
    share = ("env", "NCCLKV_SHARE_GPU=1")
    comm, store, capture = ON_GPU
    runs = [
        Run("few-rules", (*pytest, "tests/nccl/emulated", "-k", f"not ({' or '.join(LONG)})"), 240),
        Run("few-one", (*pytest, "tests/nccl/test_gpu_errors.py", *SEVERAL_GPUS), 120),
        Run("few-2", (*share, *ranks, "2", "-m", "pytest", store, "-m", "first"), 120),
        Run("few-3", (*ranks, "3", "-m", "pytest", comm, capture, "-k", "not failure"), 120),
    ]
    return [_inside(run) for run in runs]


def _inside(run: Run) -> Run:
    return Run(f"emulated-{run.name}", (*INSIDE, *run.command), run.limit)


def execute(run: Run) -> str:
    """Run one command; say how it went, beginning with "passed" when it did.

    A test that ends its process is lost alone: the run goes on behind it, within the same limit.
    """
    limit = stretched(run.limit)
    print(f"\n===== {run.name}: {' '.join(run.command)} (at most {limit:g} s)", flush=True)
    begin = time.monotonic()
    try:
        ended = rounds.run(
            run.command,
            lambda command: _start(command, begin + limit - time.monotonic()),
            lambda line: print(f"===== {run.name}: {line}", flush=True),
        )
    except subprocess.TimeoutExpired:
        return f"FAILED: stopped after {limit:g} s"
    seconds = time.monotonic() - begin
    if ended.lost:
        return f"FAILED: lost {', '.join(ended.lost)} in {seconds:.0f} s"
    how = "passed" if ended.code == 0 else f"FAILED with exit code {ended.code}"
    return f"{how} in {seconds:.0f} s"


def _start(command: Sequence[str], limit: float) -> int:
    """Run a command to its end and return its exit code; past its limit it is ended."""
    # A session of its own, so that all the processes it starts can be ended together.
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "VENV": sys.prefix},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(limit)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        end(process)
        raise


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and those it started: politely first, since mpirun then ends its ranks."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.killpg(process.pid, number)
        try:
            process.wait(GRACE)
            return
        except subprocess.TimeoutExpired:
            continue


def main(names: list[str]) -> int:
    if names == ["gpu"] and (lacking := gpu.missing()):
        print(f"no test of a GPU can run: {lacking}")
        return int(gpu.required())
    groups = {"gpu": gpu_suite, "emulated": emulated_suite, "emulated-few": emulated_few}
    for name in set(names) & set(groups):
        names = [each for each in names if each != name] + [run.name for run in groups[name]()]
    runs = suite() + (by_name() if names else [])
    unknown = set(names) - {run.name for run in runs}
    if unknown:
        print(f"no such run: {', '.join(sorted(unknown))}; there are", *(run.name for run in runs))
        return 2
    chosen = [run for run in runs if not names or run.name in names]
    before = leftovers.present()
    results = []
    for run in chosen:
        results.append(execute(run))
        leftovers.sweep(before)
        print(f"===== {run.name}: {results[-1]}", flush=True)
    print()
    width = max(10, *(len(run.name) for run in chosen))
    for run, result in zip(chosen, results, strict=True):
        print(f"{run.name:{width}} {result}")
    passed = sum(result.startswith("passed") for result in results)
    print(f"runs: {passed} passed, {len(chosen) - passed} failed")
    return int(passed < len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
