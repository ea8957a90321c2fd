"""Every case of the bench on two ranks as threads, and runs that must fail."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from bench import __main__ as program
from bench import cases, libraries
from bench.candidates import baselines
from bench.cases import (
    allreduce_64mib,
    comparing,
    contract,
    many_keys,
    memory_use,
    models,
    narrow,
    sweep,
    torch_modules,
    updates,
)
from bench.data import Sum
from bench.job import Job
from bench.libraries.base import Absent, Ours
from bench.libraries.torch_dist import TorchLibrary
from bench.memory import GpuMemory, HostMemory
from bench.options import KIB, MIB, Options
from bench.rounds import Candidate, take_turns
from bench.workload import Workload
from ncclkv.comm.host import threads
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.comm.types import DoneWork
from ncclkv.kernels.base import Segments
from ncclkv.kernels.host import HostKernels
from ncclkv.testing import run_ranks
from tests.harness.source import ROOT, Module, length

TINY = {"a": (3, 50), "b": (70,), "empty": (0,), "c": (2, 2, 2)}
OPTIONS = Options(rounds=2, warmups=1, max_bytes=64 * KIB, models=("tiny",), quick=True)
PARTS = {**cases.HOST, **cases.GPU}


class Second(Ours):
    """A second library, which is our communicator."""

    name = "Gloo"


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setitem(models.MODELS, "tiny", lambda: TINY)
    monkeypatch.setattr(allreduce_64mib, "NBYTES", 64 * KIB)
    monkeypatch.setattr(many_keys, "NBYTES", 64 * KIB)
    monkeypatch.setattr(comparing, "NBYTES", 64 * KIB)
    monkeypatch.setattr(contract, "LONG", 64 * KIB)
    monkeypatch.setattr(contract, "SHORT_CALLS", 10)
    monkeypatch.setattr(many_keys, "MANY", 100)
    monkeypatch.setattr(narrow, "COUNT", 8_000)
    monkeypatch.setattr(torch_modules, "WIDTH", 16)


def on_threads(body, options=OPTIONS):
    """Return the results of ``body(job)`` on two ranks."""

    def rank():
        comm = threads.world(None)
        job = Job(comm, HostMemory(comm), options)
        found = body(job)
        comm.close()
        return found

    return run_ranks(2, rank)


def solo() -> Job:
    comm = SoloCommunicator(10.0)
    return Job(comm, HostMemory(comm), OPTIONS)


def needs_torch() -> None:
    pytest.importorskip("torch", reason="torch is not installed: the extra `torch` has it")


@pytest.mark.parametrize("part", PARTS)
def test_case_runs_with_correct_results(part, capsys):
    if part == "modules":
        needs_torch()

    def body(job):
        job.libraries = [Second(job.comm)]
        PARTS[part](job)
        return job.wrong, bool(job.record)

    assert on_threads(body) == [(0, True), (0, True)]
    assert "#wrong" in capsys.readouterr().out or part in ("cpu", "memory")


@pytest.mark.parametrize("part", PARTS)
def test_case_runs_on_one_rank(part, capsys):
    job = solo()
    PARTS[part](job)
    assert job.wrong == 0
    assert capsys.readouterr().out


def test_every_kind_of_call_is_in_the_table(capsys):
    on_threads(models.run)
    said = capsys.readouterr().out
    for name in (models.LISTS, models.VIEWS, models.KEYS, models.TURN, models.GROUP, models.RAW):
        assert f"  {name} " in said
    assert "1 launches of collectives a step" in said


def test_the_system_counts_the_states_that_the_plan_shows():
    options = replace(OPTIONS, max_bytes=4 * MIB)
    comm = SoloCommunicator(10.0)
    job = Job(comm, HostMemory(comm), options)
    memory_use.run(job)
    for row in job.record["memory"]:
        assert row["declared"] == 2 * options.max_bytes
        assert row["states"] == pytest.approx(row["declared"], rel=0.25)
        # Weights, gradients and states.
        assert row["total"] >= 3.75 * options.max_bytes


def test_an_update_that_leaves_elements_out_is_found(monkeypatch):
    right = HostKernels.update

    def short(program, weights, gradients, states, scalars, segments, *others):
        if weights.size > updates.SAMPLE:
            segments = Segments(segments.bounds - np.array([0, 1]))
        right(program, weights, gradients, states, scalars, segments, *others)

    monkeypatch.setattr(HostKernels, "update", staticmethod(short))
    job = solo()
    updates.run(job)
    # The last weight, in each turn of each optimizer.
    turns = OPTIONS.rounds + OPTIONS.warmups
    assert job.wrong == turns * sum(len(names) for _, names, _ in updates.ROWS)


class Broken(SoloCommunicator):
    """A library whose allreduce and allgather do nothing."""

    def allreduce(self, send, receive, op="sum"):
        return DoneWork()

    def allgather(self, send, receive):
        return DoneWork()


def test_a_library_that_does_nothing_fails_the_sizes(monkeypatch):
    class Idle(Ours):
        """A library whose calls do nothing."""

        def start(self, send, receive):
            return lambda: None

    monkeypatch.setattr(sweep, "Ours", Idle)

    def body(job):
        sweep.run(job)
        return job.wrong

    wrong = on_threads(body)
    assert wrong[0] == wrong[1] > 0


@pytest.mark.parametrize("part", ["raw", "allreduce", "flush"])
def test_a_wrong_communicator_fails_the_case(part):
    comm = Broken(10.0)
    job = Job(comm, HostMemory(comm), OPTIONS)
    PARTS[part](job)
    assert job.wrong > 0


@pytest.mark.parametrize("part", ["lists", "keys", "models"])
def test_a_wrong_store_fails_the_case(part, monkeypatch):
    """Check that a case fails when each pull has one wrong number in its first key."""
    from bench.candidates.store import Lists

    pull = Lists.wrong

    def spoiled(self):
        self.work.outs[0].reshape(-1)[0] += 1
        return pull(self)

    monkeypatch.setattr(Lists, "wrong", spoiled)
    job = solo()
    PARTS[part](job)
    assert job.wrong > 0


class Counting(Candidate):
    """A candidate that records its turns."""

    def __init__(self, name, log):
        self.name = name
        self.log = log

    def prepare(self, step):
        self.step = step

    def run(self, mark):
        self.log.append((self.name, self.step))
        mark("half")

    def wrong(self):
        return 1


def test_candidates_take_turns():
    log, job = [], solo()
    results = take_turns(job, "", [Counting(name, log) for name in "abcd"])
    rounds = ["".join(name for name, _ in log[begin : begin + 4]) for begin in (0, 4, 8)]
    assert [sorted(each) for each in rounds] == [list("abcd")] * 3
    assert len(set(rounds)) > 1, "every round has the same order"
    again = []
    take_turns(solo(), "", [Counting(name, again) for name in "abcd"])
    assert again == log, "ranks would draw different orders"
    assert [step for _, step in log] == list(range(1, 13))
    assert {len(found.seconds) for found in results.values()} == {2}
    assert job.wrong == 12
    first = results["a"]
    assert list(first.phases) == ["half", "rest"]
    whole = [sum(parts) for parts in zip(*first.phases.values(), strict=True)]
    assert whole == pytest.approx(first.seconds)


def test_buckets_and_cuts():
    job = solo()
    work = Workload(job, {str(number): (10,) for number in range(5)})
    assert work.buckets(80) == [(0, 2), (2, 4), (4, 5)]
    assert work.buckets(1) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert [piece.size for piece in baselines.cut(np.zeros(10, np.float32), 16)] == [4, 4, 2]


def test_check_of_the_bucketed_baseline_passes_and_can_fail():
    def body(job):
        work = Workload(job, TINY)
        flat = job.memory.bucket(work.nbytes // 4)
        views, expected = work.views(flat), Sum(2)
        ranges, chunks = models._buckets(work, flat)
        baseline = baselines.Bucketed(
            work, Ours(job.comm), views, ranges, chunks, expected, "baseline"
        )
        take_turns(job, "", [baseline])
        right = job.wrong
        baseline.into[0][0, 0] += 1
        return right, baseline.wrong()

    assert on_threads(body) == [(0, 1), (0, 1)]


def test_absent_libraries_are_named(monkeypatch):
    def absent(job):
        raise Absent("it is not installed")

    here = solo()
    reasons = libraries.find(here, {"one": absent, "two": lambda job: Second(job.comm)})
    assert reasons == {"one": "it is not installed"}
    assert [library.name for library in here.libraries] == ["Gloo"]


def test_torch_as_a_library(monkeypatch, capsys):
    """Compare sums and SGD of torch with the store's, bit for bit."""
    needs_torch()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    job = solo()
    assert libraries.find(job, {"Gloo": TorchLibrary}) == {}
    try:
        for part in ("sizes", "allreduce", "models", "modules"):
            PARTS[part](job)
    finally:
        job.libraries[0].close()
    assert job.wrong == 0
    said = capsys.readouterr().out
    assert "  Gloo, copies in and out + SGD " in said
    assert "  Gloo, flat 25 MiB buckets + SGD " in said
    assert "  DDP on Gloo, no_sync " in said
    assert said.count("  bare: no reduction, no update ") == len(torch_modules.MODULES)
    assert "  a training step of 400 small parameters, 212.5 KiB of gradients: " in said
    assert "of CNN, 445.2 KiB of gradients: ncclkv.torch.DataParallel / DDP on Gloo\n" in said


def test_gradients_of_modules_that_are_not_averages_are_wrong(monkeypatch):
    needs_torch()
    import ncclkv.torch

    sums = partial(ncclkv.torch.DataParallel, average=False)
    monkeypatch.setattr(ncclkv.torch, "DataParallel", sums)

    def body(job):
        torch_modules.run(job)
        return job.wrong > 0

    assert on_threads(body) == [True, True]


def test_without_torch_the_steps_of_modules_are_left_out(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    job = solo()
    torch_modules.run(job)
    assert job.wrong == 0
    said = capsys.readouterr().out
    assert said.startswith("# training steps of torch modules are left out: torch cannot be ")
    assert "make bench TORCH=1" in said


def test_place_on_a_gpu_asks_cupy(monkeypatch):
    """Check which functions are called, with NumPy's functions under CuPy's names."""
    waits = []
    runtime = SimpleNamespace(
        getDevice=lambda: 3,
        getDeviceProperties=lambda number: {"name": b"some GPU"},
        deviceGetPCIBusId=lambda number: "0000:0A:00.0",
        memGetInfo=lambda: (600, 1000),
    )
    device = SimpleNamespace(synchronize=lambda: waits.append("device"))
    cupy = SimpleNamespace(
        empty=np.empty,
        cuda=SimpleNamespace(runtime=runtime, Device=lambda: device),
        get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    memory = GpuMemory(SoloCommunicator(10.0), sharing=2)
    assert memory.device() == "device  3 [0000:0A:00.0] some GPU"
    assert memory.free_bytes() == 300
    assert memory.empty((2, 3)).dtype == np.float32
    memory.synchronize()
    assert waits == ["device"]


def test_a_gpu_s_clock_is_a_pair_of_events(monkeypatch):
    order = []

    class Event:
        def __init__(self):
            self.place = None

        def record(self):
            self.place = len(order)
            order.append("event")

    device = SimpleNamespace(synchronize=lambda: order.append("device"))
    cuda = SimpleNamespace(
        Device=lambda: device,
        Event=Event,
        get_elapsed_time=lambda begin, end: 250.0 * (end.place - begin.place),
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    memory = GpuMemory(SoloCommunicator(10.0))
    assert memory.timed(lambda: order.append("work")) == 0.5
    assert order == ["event", "work", "event", "device"]


@pytest.fixture
def _no_libraries(monkeypatch):
    monkeypatch.setattr(libraries, "HOST", {})


@pytest.mark.usefixtures("_no_libraries")
def test_program_prints_the_correct_cases(tmp_path, capsys):
    assert program.main(["--only", "raw", "--max-bytes", "64", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "# all numbers were right" in said
    assert "backend=one process" in said
    assert len(list(tmp_path.glob("*.json"))) == 1


@pytest.mark.usefixtures("_no_libraries")
def test_program_fails_when_a_number_was_wrong(tmp_path, capsys):
    comm = Broken(10.0)
    options = replace(OPTIONS, parts=("raw",), out=tmp_path)
    assert program.run(Job(comm, HostMemory(comm), options)) == 1
    assert "FAILED" in capsys.readouterr().out


def test_without_a_gpu_the_program_prints_the_reason(monkeypatch, capsys):
    none = SimpleNamespace(obstacle="there is no NVIDIA driver")
    monkeypatch.setattr(program.gpus, "survey", lambda comm: [none])
    assert program.main(["gpu"]) == 0
    said = capsys.readouterr().out
    assert said == "nothing was measured on a GPU: there is no NVIDIA driver\n"


@pytest.mark.parametrize("path", sorted((ROOT / "bench").rglob("*.py")), ids=lambda path: path.stem)
def test_files_and_functions_are_short(path):
    module = Module(path, path.stem)
    assert len(module.text.splitlines()) <= 300
    assert [each.name for each in module.functions() if length(each) > 40] == []
