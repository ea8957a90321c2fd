"""Write a store's metrics as scalars for TensorBoard, each 20 steps.

::

    mpirun -n 4 python docs/examples/tensorboard.py runs

A SummaryWriter of torch or of tensorboardX is used where it is installed; else the scalars are
printed.  Any other tracker takes the same calls: ``wandb.log({name: value}, step=step)``.
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import ncclkv


def scalars(metrics: dict[str, Any], before: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield names and numbers of the time since earlier metrics."""
    seconds = metrics["seconds"] - before["seconds"]
    yield (
        "ncclkv/pushed_MB_per_s",
        (metrics["pushed_bytes"] - before["pushed_bytes"]) / 1e6 / seconds,
    )
    waited = metrics["waited_seconds"] - before["waited_seconds"]
    yield "ncclkv/share_of_time_waited_for_ranks", waited / seconds
    for rank, last in metrics["last"]["ranks"].items():
        yield f"ncclkv/median_ms_that_rank_{rank}_was_last_by", 1e3 * last["median_seconds"]


def writer(folder: str) -> Any:
    """Return a function ``add(name, value, step)``."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            return lambda name, value, step: print(f"step {step:4}  {name}: {value:.4g}")
    return SummaryWriter(folder).add_scalar


def main(folder: str) -> None:
    with ncclkv.create("dist_sync") as kv:
        kv.init("w", np.zeros(100_000, np.float32))
        kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=0.1))
        add = writer(folder) if kv.rank == 0 else None
        before = kv.metrics()
        for step in range(1, 101):
            kv.push("w", np.full(100_000, 1.0 / step, np.float32))
            kv.pull("w")
            if add is not None and step % 20 == 0:
                metrics = kv.metrics()
                for name, value in scalars(metrics, before):
                    add(name, value, step)
                before = metrics


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs")
