"""Training steps of torch modules: by ncclkv's DataParallel, and by torch's DDP on Gloo."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bench.candidates.baselines import Flat, cut
from bench.data import Sum
from bench.job import Job
from bench.libraries.base import Ours
from bench.libraries.torch_dist import TorchLibrary
from bench.options import MIB
from bench.report import table
from bench.report.units import size_text
from bench.rounds import Candidate, Result, take_turns
from bench.workload import Workload

if TYPE_CHECKING:
    from bench.candidates.modules import Reference

OURS = "ncclkv.torch.DataParallel"
BARE = "bare: no reduction, no update"
BUCKET_BYTES = 25 * MIB
"""Bucket size of the bare sums: the default of the store and of DDP."""

COPIES = 20
"""Copies of a module's bytes in memory, on every rank."""

INPUTS, WIDTH, SMALL = 2048, 2560, 16


def run(job: Job) -> None:
    if obstacle := _obstacle(job):
        job.print(f"# training steps of torch modules are left out: {obstacle}\n")
        return
    from bench.candidates.modules import Reference

    for name, (make, shape, goal) in MODULES.items():
        reference = Reference(job, make, shape)
        what = f"step of {name}, {size_text(reference.nbytes)} of gradients"
        if job.fits(what, COPIES * reference.nbytes):
            _compare(job, name, what, reference, goal)


def _obstacle(job: Job) -> str:
    """Return why there is nothing to measure; "" if torch is present on all ranks."""
    if job.options.gpu:
        return "modules are in host memory"
    problem = ""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        problem = f"torch cannot be imported ({error}): make bench TORCH=1"
    return max(job.comm.control.allgather(problem, "is torch present"))


def _compare(job: Job, name: str, what: str, reference: Reference, goal: float) -> None:
    """Measure steps of a module, the same without a reduction, and bare sums; collective."""
    from torch.nn.parallel import DistributedDataParallel

    from bench.candidates.modules import Step
    from ncclkv.torch import DataParallel

    theirs = [each for each in job.libraries if isinstance(each, TorchLibrary)]
    ours = DataParallel(reference.copy(), job.store())
    models: dict[str, Any] = {OURS: ours}
    models |= {_ddp(each): DistributedDataParallel(reference.copy()) for each in theirs}
    bare = Step(BARE, reference.copy(), reference, reduces=False, updates=False)
    candidates: list[Candidate] = [bare]
    for title, model in models.items():
        candidates.append(Step(title, model, reference, reduces=True))
        candidates.append(Step(_alone(title), model, reference, reduces=False))
    count = reference.nbytes // 4
    work, expected = Workload(job, {"all": (count,)}), Sum(job.comm.size)
    for title, library, flat in (
        (OURS, Ours(job.comm), job.memory.bucket(count)),
        *((_ddp(each), each, work.gradients[0]) for each in theirs),
    ):
        chunks = cut(flat, BUCKET_BYTES)
        candidates.append(Flat(work, library, chunks, [flat], expected, _bare(title)))
    results = take_turns(job, name, candidates)
    ours.close()
    for each in theirs:
        each.forget()
    table.table(job, f"{what}, {job.comm.size} ranks", results, reference.nbytes, OURS)
    work = f"a training {what}"
    table.ratio(job, work, results, OURS, [_ddp(each) for each in theirs], goal)
    for title in models:
        _added(job, name, results, title)
    job.print()


def _added(job: Job, name: str, results: dict[str, Result], title: str) -> None:
    """Print and record the time that the reduction adds to a step, in bare sums.

    Below 1 the backward pass has hidden a part of the sum.  The time contains copies of gradients
    into buckets, and the broadcast of buffers.
    """
    added = results[title].median - results[_alone(title)].median
    ratio = added / results[_bare(title)].median
    text = f"{name}, {title}: time that the reduction adds to a step / bare sum"
    job.print(f"  {ratio:8.3f}  {text}")
    job.record.setdefault("added", {})[f"{name}, {title}"] = ratio


def _alone(title: str) -> str:
    return f"{title}, no_sync"


def _bare(title: str) -> str:
    return f"{title}, bare sum"


def _ddp(library: TorchLibrary) -> str:
    return f"DDP on {library.name}"


def cnn() -> Any:
    """Return a network of three convolutions with BatchNorm, for images of 3 x 32 x 32."""
    from torch import nn

    layers: list[Any] = []
    for inputs, outputs in (3, 32), (32, 64), (64, 128):
        # No biases before BatchNorm: their gradients are rounding errors alone.
        layers.append(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False))
        layers += [nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 4 * 4, 10))


def mlp() -> Any:
    """Return a network of five linear layers, which has 25 million parameters."""
    from torch import nn

    layers: list[Any] = []
    for inputs, outputs in pairwise([INPUTS, WIDTH, WIDTH, WIDTH, WIDTH]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def small() -> Any:
    """Return a network of 200 linear layers, which has 400 small parameters."""
    from torch import nn

    layers = [nn.Linear(SMALL, SMALL) for _ in range(200)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight)  # gradients of the first layers would vanish otherwise
    return nn.Sequential(*layers)


MODULES: dict[str, tuple[Callable[[], Any], tuple[int, ...], float]] = {
    "CNN": (cnn, (3, 32, 32), 0.8),
    "400 small parameters": (small, (SMALL,), 0.85),
    "MLP": (mlp, (INPUTS,), 0.8),
}
"""Functions that make a network, the shapes of an input, and the goals of the ratio to DDP."""
