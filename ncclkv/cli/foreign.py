"""Options of other launchers: each is refused with the line of ``ncclkv run`` to type."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence

from ncclkv.cli import allocation, host_lists
from ncclkv.errors import LaunchError

_PER_NODE = (
    *("--nproc-per-node", "--nproc_per_node", "--ntasks-per-node", "--num_gpus"),
    *("-ppn", "--ppn", "-perhost", "-npernode", "--npernode"),
)
_NODES = ("--nnodes", "--nodes", "--num_nodes")
_TOTAL = ("--ntasks", "--num-processes", "--num_processes", "--nprocs")
_VALUES = (
    *("--node-rank", "--node_rank", "--master-addr", "--master_addr"),
    *("--master-port", "--master_port", "--rdzv-backend", "--rdzv_backend"),
    *("--rdzv-endpoint", "--rdzv_endpoint", "--rdzv-id", "--rdzv_id"),
    *("--map-by", "--bind-to", "-x", "-env", "--mpi"),
)
_MODULE = ("-m", "--module")
_FLAGS = ("--standalone", "--oversubscribe", "--allow-run-as-root", "--no-python")
"""Options of torchrun, srun, accelerate, deepspeed and of each mpirun, by the value they take."""

_UNKNOWN = "RANKS"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options, without a line in the help."""
    for name in _MODULE:
        parser.add_argument(name, dest="-m", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    for name in (*_PER_NODE, *_NODES, *_TOTAL, *_VALUES, *_FLAGS):
        kind = "store_true" if name in _FLAGS else "store"
        parser.add_argument(name, dest=name, action=kind, help=argparse.SUPPRESS)


def refuse(options: argparse.Namespace, command: Sequence[str]) -> None:
    """Raise a `LaunchError` with the line to type, if an option of another launcher is given."""
    given = vars(options)
    names = (*_PER_NODE, *_NODES, *_TOTAL, *_VALUES, *_FLAGS, "-m")
    found = next((name for name in names if given[name]), None)
    if found is None:
        return
    placed = _place(options, *(_first(given, names) for names in (_PER_NODE, _NODES, _TOTAL)))
    program = ["python", "-m", *given["-m"]] if given["-m"] else [*command]
    if program and program[0].endswith(".py"):
        program.insert(0, "python")
    line = f"ncclkv run {placed} -- {shlex.join(program) or 'python train.py'}"
    once = ", once, on one host" if "--hosts" in placed else ""
    raise LaunchError(
        f"{found} is an option of another launcher; ncclkv run places and connects the ranks by "
        f"itself, and gives them its environment. Type{once}: {line}"
    )


def _first(given: Mapping[str, str | None], names: Sequence[str]) -> str | None:
    return next((given[name] for name in names if given[name]), None)


def _place(
    options: argparse.Namespace, per_node: str | None, nodes: str | None, total: str | None
) -> str:
    """Return our options for as many ranks."""
    if options.hostfile is not None:
        return f"--hostfile {options.hostfile}"
    if allocation.host_variable() and nodes and per_node and (nodes + per_node).isdecimal():
        return f"-n {int(nodes) * int(per_node)}"
    if options.hosts is not None:
        hosts = [*host_lists.parse(options.hosts)]
    else:
        hosts = ["HOST1", "HOST2"] if nodes not in (None, "1") else []
    if hosts and options.n is None and total is None:
        more = [] if options.hosts or nodes == "2" else ["..."]
        return "--hosts " + ",".join([*(f"{name}:{_count(per_node)}" for name in hosts), *more])
    return f"-n {options.n or _count(total or per_node)}"


def _count(text: str | None) -> str:
    """Return the text of a count above 0; other texts, such as torchrun's "auto", are none."""
    return text if text is not None and text.isdecimal() and int(text) > 0 else _UNKNOWN
