"""The table "torch.distributed here" of ``docs/from-ddp.md``: each line runs on all ranks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import ncclkv
from tests.harness.modules import MEAN_RANK, RANK, SIZE, linear
from tests.harness.source import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (  # noqa: E402
    fp16_compress_hook,
)
from torch.utils.data import TensorDataset  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

TOTAL, LAST = SIZE * (SIZE + 1) // 2, SIZE - 1

Names = dict[str, Any]
Check = Callable[[Names], object]


def rows() -> dict[str, str]:
    """Return the cells of the table: our side by torch's."""
    page = (ROOT / "docs" / "from-ddp.md").read_text()
    table = page.split("## torch.distributed here")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (.*?) \| (.*?) \|$", table, re.MULTILINE)
    return {theirs: ours for theirs, ours in cells if theirs != "torch.distributed"}


def names() -> Names:
    """Return what the lines of the table use; the numbers of each rank are rank + 1."""
    x = torch.full((2, 3), RANK + 1.0)
    return {
        "ncclkv": ncclkv,
        "MPI": MPI,
        "fp16_compress_hook": fp16_compress_hook,
        "DistributedSampler": DistributedSampler,
        "x": x,
        "y": torch.full((1,), RANK + 1, dtype=torch.int64),
        "parts": torch.zeros(SIZE, 2, 3),
        "loss": torch.tensor(RANK + 1.0),
        "obj": {"rank": RANK},
        "objs": [{"part": rank} for rank in range(SIZE)] if RANK == 0 else None,
        "color": RANK % 2,
        "data": TensorDataset(torch.arange(4 * SIZE)),
        "module": linear(2.0, torch.float32),
    }


def filled(x: Any, value: float) -> bool:
    return bool(np.array_equal(np.asarray(x), np.full((2, 3), value)))


def reduced(found: Names) -> bool:
    return filled(found["x"], TOTAL)


def stacked(found: Names) -> bool:
    return all(filled(part, rank + 1) for rank, part in enumerate(found["parts"]))


def gathered(found: Names) -> bool:
    return bool(found["objs"] == [{"rank": rank} for rank in range(SIZE)])


def group_of_the_color(found: Names) -> bool:
    group = found["group"]
    return bool(group.allgather(RANK).tolist() == [*range(RANK % 2, SIZE, 2)])


def gradient_of_all(found: Names) -> bool:
    found["model"](torch.full((1, 2), RANK + 1.0)).sum().backward()
    return bool(found["module"].weight.grad.tolist() == [[MEAN_RANK + 1] * 2])


def type_of(found: Names) -> Any:
    return found["kv"].gradient_compression("weight")["type"]


CHECKS: dict[str, Check] = {
    '`init_process_group("gloo")`': lambda n: n["kv"].num_workers == SIZE,
    "`init_process_group(timeout=...)`": lambda n: n["kv"].num_workers == SIZE,
    "`destroy_process_group()`": lambda n: "closed" in repr(n["kv"]),
    "`get_rank()`": lambda n: n["rank"] == RANK,
    "`get_world_size()`": lambda n: n["ranks"] == SIZE,
    "`get_node_local_rank()`, `LOCAL_RANK`": lambda n: n["local_rank"] == n["kv"].local_rank,
    "`get_backend()`": lambda n: n["name"] == "dist_sync",
    "`barrier()`": lambda n: True,
    "`monitored_barrier()`": lambda n: True,
    "`all_reduce(x)`": reduced,
    "`all_reduce(x, ReduceOp.AVG)`": lambda n: filled(n["x"], MEAN_RANK + 1),
    "`all_reduce` of a loss as a number": lambda n: n["mean"] == pytest.approx(MEAN_RANK + 1),
    "`all_reduce_coalesced([x, y])`": lambda n: reduced(n) and n["y"].tolist() == [TOTAL],
    "`reduce(x, dst=0)`": reduced,
    "`broadcast(x, src=0)`": lambda n: filled(n["x"], 1),
    "`broadcast(x, src=1)`": lambda n: filled(n["x"], 2),
    "`all_gather_into_tensor(parts, x)`, `all_gather`": stacked,
    "`gather(x, parts, dst=0)`": stacked,
    "`scatter(x, parts, src=0)`": lambda n: filled(n["x"], 0),
    "`reduce_scatter(x, parts)`": lambda n: filled(n["x"], 0),
    "`all_gather_object(objs, obj)`": gathered,
    "`broadcast_object_list(objs)`": lambda n: n["objs"] == [{"part": r} for r in range(SIZE)],
    "`gather_object(obj, objs)`": gathered,
    "`scatter_object_list(out, objs)`": lambda n: n["obj"] == {"part": RANK},
    "`new_group(ranks)`": group_of_the_color,
    "`DistributedSampler(data)`": lambda n: len(n["sampler"]) == 4,
    "`DistributedDataParallel(module)`": gradient_of_all,
    "`model.no_sync()`": lambda n: n["module"].weight.grad.tolist() == [[RANK + 1.0] * 2],
    "`model.register_comm_hook(state, hook)`": lambda n: type_of(n) == "fp16",
    "`model.join()`, `Join([model])`": lambda n: n["module"].weight.grad[0, 0] == MEAN_RANK + 1,
    "`ZeroRedundancyOptimizer`": lambda n: n["trainer"].optimizer is not None,
}
"""The state after the line of each row."""


@pytest.mark.parametrize(
    "theirs", [theirs for theirs, ours in rows().items() if not ours.startswith("none")]
)
def test_the_line_runs_on_all_ranks(theirs: str) -> None:
    if theirs == "`broadcast(x, src=1)`" and SIZE == 1:
        pytest.skip("one rank has no other root")
    found = names()
    found["kv"] = kv = ncclkv.create("dist_sync", timeout=20)
    if "model." in theirs:
        found["x"] = torch.full((1, 2), RANK + 1.0)
        found["model"] = ncclkv.torch.DataParallel(found["module"], kv)
    line = re.match(r"`([^`]+)`", rows()[theirs])
    assert line is not None
    exec(line[1], found)
    assert CHECKS[theirs](found)
    for name in ("model", "group", "kv"):
        if name in found and found[name] is not kv:
            found[name].close()
    kv.close()


def test_each_row_without_a_line_says_what_to_do() -> None:
    absent = [ours for ours in rows().values() if ours.startswith("none")]
    assert len(absent) > 8
    assert [ours for ours in absent if not ours.startswith("none: ")] == []
    assert len(rows()) == len(CHECKS) + len(absent)
