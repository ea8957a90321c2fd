"""The store's step on the keys of known networks, beside plain sums by other libraries."""

from __future__ import annotations

from itertools import accumulate, pairwise

import ncclkv
from bench.candidates.baselines import Bucketed, Copies, Flat, cut
from bench.candidates.descent import BucketedDescent, FlatDescent, TorchSGD
from bench.candidates.store import InGroup, InTurn, KeyByKey, Lists, Views
from bench.data import LEARNING_RATE, MOMENTUM, Descent, Sum
from bench.job import Job
from bench.libraries.base import Ours
from bench.libraries.torch_dist import TorchLibrary
from bench.models import MODELS, Shapes, elements
from bench.options import MIB
from bench.report import table
from bench.report.machine import memory
from bench.report.units import size_text
from bench.rounds import Candidate, Result, take_turns
from bench.workload import Workload
from ncclkv.comm.types import Buffer

BUCKET_BYTES = 25 * MIB
"""Bucket size of the other libraries; the default of the store and of torch."""

RAW = "bare allreduce, 25 MiB buckets"
LISTS, VIEWS = "store, lists", "store, grad_view and value"
KEYS, TURN, GROUP = "store, key by key", "store, each key in turn", "store, in a group"
PLAIN_COPIES, SGD_COPIES = 7, 11
"""Copies of a model's bytes in memory, on every rank."""


def run(job: Job) -> None:
    for name in job.options.models:
        shapes = MODELS[name]()
        nbytes = 4 * elements(shapes)
        what = f"{name}: {len(shapes)} keys, {size_text(nbytes)}"
        if job.fits(what, PLAIN_COPIES * nbytes):
            _plain(job, name, what, shapes)
        if job.fits(f"{what}, with SGD", SGD_COPIES * nbytes):
            _with_sgd(job, name, f"{what}, with SGD and momentum", shapes)


def _plain(job: Job, name: str, title: str, shapes: Shapes) -> None:
    """Measure sums that replace the values; collective."""
    work = Workload(job, shapes)
    expected = Sum(job.comm.size)
    with job.store() as kv:
        kv.init(work.names, work.gradients)
        candidates: list[Candidate] = [
            Lists(work, kv, expected, LISTS),
            Views(work, kv, expected, VIEWS),
            KeyByKey(work, kv, expected, KEYS),
            InTurn(work, kv, expected, TURN),
            InGroup(work, kv, expected, GROUP),
        ]
        candidates += _bare(job, work, expected)
        results = take_turns(job, name, candidates)
        launches = sum(line.split()[0].isdigit() for line in kv.explain_plan().splitlines())
    _forget(job)
    table.table(job, title, results, work.nbytes, RAW)
    table.matrix(job, results, [LISTS, VIEWS, KEYS, TURN, GROUP])
    job.print(f"# {launches} launches of collectives a step; {memory(job)}")
    step = f"{name} (push and pull of {len(shapes)} arrays, {size_text(work.nbytes)})"
    _ratios(job, step, results)


def _ratios(job: Job, step: str, results: dict[str, Result]) -> None:
    """Print the store's times over those of each library, and of its own lists."""
    lists, views = f"a step of {step}", f"a step by grad_view and value of {step}"
    for library in job.libraries:
        # The bounds are those beside torch.
        bounds = (None, None) if library.name == "MPI" else (0.30, 0.15)
        table.ratio(job, lists, results, LISTS, [_copying(library.name)], bounds[0])
        table.ratio(job, views, results, VIEWS, [_flat(library.name)], bounds[1])
    loops = f"a loop of pushes and a loop of pulls for {step}"
    table.ratio(job, loops, results, KEYS, [LISTS], 1.10)
    each = f"a push and a pull of each key in turn for {step}"
    table.ratio(job, each, results, TURN, [LISTS], 1.5)
    table.ratio(job, f"{each}, in a group", results, GROUP, [LISTS], 1.1)
    job.print()


def _bare(job: Job, work: Workload, expected: Sum) -> list[Candidate]:
    """Return candidates that sum the same bytes in one flat array, and a copy of these bytes.

    Ours is in the store's memory.  The libraries share an ordinary array.
    """
    bucket, flat = job.memory.bucket(work.nbytes // 4), job.memory.empty(work.nbytes // 4)
    ours, of_bucket = Ours(job.comm), cut(bucket, BUCKET_BYTES)
    found: list[Candidate] = [Flat(work, ours, of_bucket, work.views(bucket), expected, RAW)]
    views, chunks = work.views(flat), cut(flat, BUCKET_BYTES)
    for library in job.libraries:
        if library.name == "MPI":
            found.append(Flat(work, library, [flat], views, expected, "MPI, whole"))
            slices = cut(flat, MIB)
            found.append(Flat(work, library, slices, views, expected, "MPI, 1 MiB slices"))
        found.append(Flat(work, library, chunks, views, expected, _flat(library.name)))
        buckets, chunks = _buckets(work, flat)
        name = _copying(library.name)
        found.append(Bucketed(work, library, views, buckets, chunks, expected, name))
    return [*found, Copies(work)]


def _with_sgd(job: Job, name: str, title: str, shapes: Shapes) -> None:
    """Measure SGD: the store's own, and torch's on every rank."""
    work = Workload(job, shapes)
    of_store = Descent(job.comm.size)
    with job.store() as kv:
        _begin_with_zeros(work, kv)
        candidates: list[Candidate] = [
            Lists(work, kv, of_store, LISTS),
            Views(work, kv, of_store, VIEWS),
        ]
        bucket, flat = job.memory.bucket(work.nbytes // 4), job.memory.empty(work.nbytes // 4)
        ours, of_bucket = Ours(job.comm), cut(bucket, BUCKET_BYTES)
        sums = Sum(job.comm.size)
        candidates.append(Flat(work, ours, of_bucket, work.views(bucket), sums, RAW))
        for library in job.libraries:
            if isinstance(library, TorchLibrary):
                candidates += _torch_sgd(work, library, flat, work.views(flat))
        results = take_turns(job, f"{name} + SGD", candidates)
    _forget(job)
    table.table(job, title, results, work.nbytes, RAW)
    table.matrix(job, results, [LISTS, VIEWS])
    job.print(f"# {memory(job)}")
    torch = [library.name for library in job.libraries if isinstance(library, TorchLibrary)]
    copies, flat_sums = (
        [f"{_copying(n)} + SGD" for n in torch],
        [f"{_flat(n)} + SGD" for n in torch],
    )
    step = f"of {name} with SGD and momentum ({len(shapes)} arrays, {size_text(work.nbytes)})"
    table.ratio(job, f"a step {step}", results, LISTS, copies, 0.33)
    table.ratio(job, f"a step by grad_view and value {step}", results, VIEWS, flat_sums, 0.15)
    job.print()


def _begin_with_zeros(work: Workload, kv: ncclkv.KVStore) -> None:
    """Give the store zeros as weights, and its optimizer."""
    for gradient in work.gradients:
        gradient.fill(0)
    kv.init(work.names, work.gradients)
    kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=LEARNING_RATE, momentum=MOMENTUM))


def _torch_sgd(
    work: Workload, library: TorchLibrary, flat: Buffer, views: list[Buffer]
) -> list[Candidate]:
    """Return torch's sum and SGD: with copies into buckets and back, and on views."""
    job = work.job
    buckets, chunks = _buckets(work, flat)
    weights = [job.memory.empty(shape) for shape in work.shapes]
    expected = Descent(job.comm.size)
    name = _copying(library.name) + " + SGD"
    copying = BucketedDescent(work, library, views, buckets, chunks, expected, name)
    copying.sgd = TorchSGD(library, weights, work.gradients)

    chunks = cut(flat, BUCKET_BYTES)
    own = work.views(job.memory.empty(work.nbytes // 4))
    viewing = FlatDescent(
        work, library, chunks, views, Descent(job.comm.size), _flat(library.name) + " + SGD"
    )
    viewing.sgd = TorchSGD(library, own, views)
    return [copying, viewing]


def _buckets(work: Workload, flat: Buffer) -> tuple[list[tuple[int, int]], list[Buffer]]:
    """Return ranges of keys of up to 25 MiB, and the same ranges of the flat array."""
    buckets = work.buckets(BUCKET_BYTES)
    counts = [sum(array.size for array in work.gradients[lo:hi]) for lo, hi in buckets]
    return buckets, [flat[lo:hi] for lo, hi in pairwise(accumulate(counts, initial=0))]


def _flat(library: str) -> str:
    return f"{library}, flat 25 MiB buckets"


def _copying(library: str) -> str:
    return f"{library}, copies in and out"


def _forget(job: Job) -> None:
    """Release the arrays that libraries hold."""
    for library in job.libraries:
        library.forget()
