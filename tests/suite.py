"""The runs of the whole suite: their commands, limits and weights."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from tests.harness.extent import VARIABLE
from tests.harness.side_by_side import ALONE

ON_GPU = (
    "tests/ranks/test_gpu_comm.py",
    "tests/ranks/test_gpu_store.py",
    "tests/ranks/test_gpu_capture.py",
    "tests/ranks/test_gpu_current.py",
    "tests/ranks/test_gpu_modules.py",
)
ALONE_ON_GPU = (
    "tests/nccl/test_gpu_errors.py",
    "tests/nccl/test_gpu_first.py",
    "tests/nccl/test_gpu_kernels.py",
)
SEVERAL_GPUS = ("tests/nccl/test_gpu_several.py", "tests/nccl/test_arrays_gpus.py")
NODES = ("env", "NCCLKV_SHARE_GPU=1", "NCCLKV_RANKS_PER_NODE=2")
ON_NODES_OF_GPUS = (*ON_GPU[1:3], "-k", "nodes")
INSIDE = (sys.executable, "-m", "tests.nccl.emulated")
"""Prefix of a command that runs in layer 3b."""

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

ALL = ("env", f"{VARIABLE}=all")
CASES = ("tests/ranks/test_comm_conformance.py", "tests/ranks/test_store_cases.py")
PROGRAMS = "tests/ranks/test_programs.py"
MODULES = (
    "tests/ranks/test_data_parallel.py",
    "tests/ranks/test_data_parallel_added.py",
    "tests/ranks/test_data_parallel_buffers.py",
    "tests/ranks/test_data_parallel_held.py",
    "tests/ranks/test_data_parallel_hooks.py",
    "tests/ranks/test_data_parallel_join.py",
    "tests/ranks/test_data_parallel_programs.py",
    "tests/ranks/test_data_parallel_states.py",
)
ON_NODES = (*CASES, PROGRAMS, "tests/ranks/test_store_comm.py")
# First the memory: communicators that the cases break on purpose keep their windows mapped.
ON_WAYS = ("tests/ranks/test_node_memory.py", *CASES, PROGRAMS)
CONTRACT = ("tests/ranks/test_standin_comm.py", "tests/ranks/test_standin_capture.py")
ANY_SEVERAL = (
    "tests/ranks/test_broken_stores.py",
    "tests/ranks/test_python_calls.py",
    "tests/ranks/test_signals.py",
)
"""Files about what one rank does while others wait: 3 ranks show as much as 2 or 4."""

STAND_IN = (
    "tests/nccl/test_standin_store.py",
    "tests/nccl/test_standin_communicator.py",
    "tests/nccl/test_standin_rank_order.py",
    "tests/nccl/test_discovery.py",
)
"""Files of ``tests/nccl`` that take half of its time; the last needs no CuPy, as a run must."""

JOBS_RUN = ("tests/jobs/test_run.py", "tests/jobs/test_mpi_end.py", "tests/jobs/test_train.py")
HOSTS_WORK = ("tests/hosts/test_same_results.py", "tests/hosts/test_run.py")
"""Files of the jobs and of the hosts that take about half of the time."""


@dataclass(frozen=True)
class Run:
    """One command of the suite.

    Attributes
    ----------
    name : str
    command : tuple of str
    limit : float
        The seconds that it may take.
    weight : int
        Processes of it that are busy at once; see `tests.harness.side_by_side`.
    """

    name: str
    command: tuple[str, ...]
    limit: float
    weight: int = 1


def suite() -> list[Run]:
    """Return all runs, in the order of their starts, with the covering set of cases."""
    pytest = (sys.executable, "-m", "pytest")
    nodes, *layouts = _on_layouts(ON_NODES, CASES)
    return [
        # Long runs begin first.  Half of those side by side wait for deadlines, the others compute.
        # Without root the runs on hosts print the reason, and test nothing.  Their ranks poll for
        # messages, and miss the deadlines of their tests if all runs that wait are beside them.
        Run("hosts", (*pytest, "--durations=20", "tests/hosts", *_ignored(HOSTS_WORK)), 600, 2),
        Run("chaos", (*pytest, "tests/chaos"), 400),
        # Without CuPy these runs print the reason, and test the little that needs none.
        Run("nccl-cases", (*pytest, "--durations=20", *STAND_IN), 900),
        Run("nccl", (*pytest, "--durations=20", "tests/nccl", *_ignored(STAND_IN)), 900),
        Run("unit", (*pytest, "--durations=20", "tests/unit"), 1200),
        Run("jobs", (*pytest, "--durations=20", "tests/jobs", *_ignored(JOBS_RUN)), 480),
        Run("jobs-run", (*pytest, "--durations=20", *JOBS_RUN), 480),
        Run("threads", (*pytest, "--durations=20", "tests/threads"), 600),
        # Other seeds in each run, which it prints.
        Run("worlds", (sys.executable, "-m", "tests.world", "--seconds=60"), 300),
        Run("worlds-cases", (*pytest, "--durations=20", "tests/world"), 300),
        Run("hosts-work", (*pytest, "--durations=20", *HOSTS_WORK), 600, 2),
        # Without Slurm, or root, this run prints the reason, and tests nothing.
        Run("slurm", (*pytest, "--durations=20", "tests/slurm"), 300, 2),
        _on_ranks(3),
        nodes,
        _on_ranks(4, but=(*CONTRACT, *ANY_SEVERAL, PROGRAMS, *MODULES)),
        *layouts,
        Run("doctor", (*pytest, "--durations=20", "tests/doctor"), 400, 2),
        Run("harness", (*pytest, "tests/harness"), 180),
        Run("faults", (*pytest, "tests/faults"), 300),
        # Without Sphinx this run prints the reason, and builds no site; it tests the rest.
        Run("docs", (*pytest, "--durations=5", "tests/docs"), 300),
        _on_ranks(2, but=(*CONTRACT, *ANY_SEVERAL, PROGRAMS, *MODULES)),
        _on_ranks(1, but=(*CONTRACT, PROGRAMS)),
        Run("doctests", (*pytest, "--doctest-modules", "ncclkv", *_of_no_framework()), 60),
    ]


def everything() -> list[Run]:
    """Return the runs of the suite with all cases on all layouts, not the covering set alone."""
    others = [*_on_layouts(ON_NODES, ON_NODES), *(_on_ranks(size) for size in (1, 2, 3, 4))]
    runs = {run.name: run for run in (*suite(), *others)}
    return [
        replace(run, name=f"all-{name}", command=(*ALL, *run.command), limit=2 * run.limit)
        for name, run in runs.items()
    ]


def _on_ranks(size: int, but: Sequence[str] = ()) -> Run:
    """Return the run of ``tests/ranks`` on a node, but for some files and those of a GPU."""
    left_out = _ignored((*ON_GPU, *but))
    return Run(f"ranks-{size}", (*ranks(size), "tests/ranks", *left_out), 400, _weight(size))


def _of_no_framework() -> list[str]:
    """Return pytest's options that leave out the parts for frameworks that are not installed."""
    left_out = ["mxnet"]  # in the run of this name, since MXNet needs an environment of its own
    if find_spec("torch") is None:
        print("torch is not installed: the examples of ncclkv.torch are left out")
        left_out.append("torch")
    return _ignored([f"ncclkv/{name}" for name in left_out])


def _ignored(paths: Sequence[str]) -> list[str]:
    """Return pytest's options that leave files out."""
    return [f"--ignore={path}" for path in paths]


def _on_layouts(files: Sequence[str], some: Sequence[str]) -> list[Run]:
    """Return the runs of some files on ranks that share less, or have no kernels in C."""
    split = ("env", "NCCLKV_RANKS_PER_NODE=2")
    halves = ("env", "NCCLKV_NODE_MEMORY=halves")
    plain = ("env", "NCCLKV_COMPILED=0")
    return [
        Run("nodes-4", (*split, *ranks(4), *files), 240, _weight(4)),
        Run("halves-3", (*halves, *ranks(3), *ON_WAYS), 240, _weight(3)),
        Run("nodes-3", (*split, *ranks(3), *some), 240, _weight(3)),
        Run("plain-3", (*plain, *ranks(3), *some), 240, _weight(3)),
    ]


def _weight(size: int) -> int:
    """Return the weight of so many ranks: they wait for each other, and keep one core busy."""
    return 1 if size < 3 else 2


def ranks(size: int) -> tuple[str, ...]:
    """Return the beginning of a command that runs pytest on ranks."""
    return ("launch/local.sh", "-n", str(size), "-m", "pytest")


def by_name() -> list[Run]:
    """Return runs that must be asked for: on a GPU, in layer 3b, parts, another NumPy or Python."""
    return [
        *everything(),
        *gpu_suite(),
        *emulated_suite(),
        *emulated_few(),
        Run("nccl-ranks", (*ranks(3), *CONTRACT), 240, 3),
        # It makes an environment of its own, and so needs a network the first time.
        Run("oldest", ("launch/oldest.sh",), 600),
        # It installs packages of Debian and of an index of Python's: minutes, and a network.
        Run("image", (sys.executable, "-m", "pytest", "--durations=20", "tests/image"), 1800, 2),
        # `unit` and `ranks-2`; without a second Python it prints the reason.
        Run("second", ("launch/second.sh",), 900),
        # Without its environment, which `launch/mxnet.sh setup` makes, it prints the reason.
        Run("mxnet", ("launch/mxnet.sh",), 600, 2),
    ]


def ci() -> list[Run]:
    """Return the runs of ``.ci/run``: all that need no GPU, and a part of layer 3b."""
    rules, *few = emulated_few()
    own = [run for run in by_name() if run.name in ("oldest", "mxnet", "second")]
    # The longest run begins first; the others of layer 3b need what it builds.
    return [rules, *suite(), *few, *own]


def gpu_suite() -> list[Run]:
    """Return all runs on a GPU, which the ranks share, in order."""
    pytest = (sys.executable, "-m", "pytest")
    runs = [Run("gpu-kernels", (*pytest, *ALONE_ON_GPU), 600, ALONE)]
    for size in (1, 2, 3, 4):
        share = ("env", "NCCLKV_SHARE_GPU=1") if size > 1 else ()
        runs.append(Run(f"gpu-{size}", (*share, *ranks(size), *ON_GPU), 600, ALONE))
    runs.append(Run("gpu-nodes", (*NODES, *ranks(4), *ON_NODES_OF_GPUS), 600, ALONE))
    runs.append(Run("gpu-faults", (*pytest, "tests/nccl/test_gpu_faults.py"), 600, ALONE))
    return runs


def emulated_suite() -> list[Run]:
    """Return all runs of layer 3b: its own rules, then the runs on a GPU as they are."""
    pytest = (sys.executable, "-m", "pytest")
    several = ("env", "EMULATED_DEVICES=4", *pytest, *SEVERAL_GPUS)
    runs = [
        Run("rules", (*pytest, "tests/nccl/emulated"), 600),
        *(replace(run, limit=1800) for run in gpu_suite()),
        Run("gpu-several", several, 300, ALONE),
    ]
    return [_inside(run) for run in runs]


def emulated_few() -> list[Run]:
    """Return the part of layer 3b that takes three minutes at most."""
    pytest = (sys.executable, "-m", "pytest")
    share = ("env", "NCCLKV_SHARE_GPU=1")
    # Each rank has a device of its own, and a new thread has the device of rank 0.
    devices = ("env", "EMULATED_DEVICES=2")
    chosen = "current or ((overlaps or first) and every_rank)"
    comm, store, capture, current, _ = ON_GPU  # torch finds no GPU in layer 3b
    runs = [
        Run("few-rules", (*pytest, "tests/nccl/emulated", "-k", f"not ({' or '.join(LONG)})"), 400),
        Run("few-one", (*pytest, *ALONE_ON_GPU[:2], *SEVERAL_GPUS), 120),
        Run("few-2", (*share, *ranks(2), store, current, "-m", "first"), 120, 2),
        Run("few-devices", (*devices, *ranks(2), store, current, "-k", chosen), 120, 2),
        Run("few-3", (*ranks(3), comm, capture), 400, 3),
        # Nodes of two ranks and of one: a rank without messages, and a rank without a slice.
        Run("few-nodes", (*NODES, *ranks(3), *ON_NODES_OF_GPUS), 120, 3),
    ]
    return [_inside(run) for run in runs]


def _inside(run: Run) -> Run:
    return replace(run, name=f"emulated-{run.name}", command=(*INSIDE, *run.command))


GROUPS = {
    "all": everything,
    "ci": ci,
    "gpu": gpu_suite,
    "emulated": emulated_suite,
    "emulated-few": emulated_few,
}
"""Names of several runs that must be asked for."""
