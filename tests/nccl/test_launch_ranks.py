"""Launch on ranks that are threads: agreement, and errors that are equal on all ranks.

Devices, streams and NCCL are the recording stand-in's, which is not NCCL (layer 2). Tests that need
no GPU use the real discovery (layer 3).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cupy", reason="layers 2 and 3 need CuPy: pip install 'ncclkv[cuda12]'")

import cupy
import numpy as np

from ncclkv.comm.base import Communicator
from ncclkv.comm.host import threads
from ncclkv.comm.nccl import start as module
from ncclkv.comm.nccl.communicator import NcclCommunicator
from ncclkv.comm.nccl.discovery import DeviceInfo, settings
from ncclkv.comm.nccl.start import launch, survey
from ncclkv.errors import CommAborted, KVStoreError, LaunchError
from ncclkv.testing import run_ranks
from tests.harness.slow import stretched
from tests.nccl.broken_communicators import HostWithFarewells
from tests.nccl.standin import Worker, run_on_standin

SIZES = (1, 2, 3)

_seats: dict[int, Worker] = {}


def facts_of(rank: int, **changes: Any) -> DeviceInfo:
    """Return the facts of a rank with its own GPU."""
    own = {
        "rank": rank,
        "host": "node0",
        "devices": 4,
        "device": rank,
        "gpu": f"gpu {rank}",
        "nccl": 23203,
        "cupy": "14.2.0",
        "driver": 12080,
        "share": False,
    }
    return DeviceInfo(**{**own, **changes})


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the variables that a launch sets after the test."""
    for name in [name for name in os.environ if name.startswith(("NCCL_", "NCCLKV_SHARE"))]:
        monkeypatch.delenv(name)
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]


def errors_of(size: int, body: Callable[[Communicator], object]) -> list[KVStoreError]:
    """Return the error of each rank."""

    def attempt() -> KVStoreError:
        peers = threads.world(10.0)
        with pytest.raises(KVStoreError) as caught:
            body(peers)
        return caught.value

    return run_ranks(size, attempt)


def bind(device: int, timeout: float, max_ctas: int | None) -> Any:
    """Return the stand-in's binding, which records its configuration."""
    binding: Any = _seats[device].binding
    binding.library = SimpleNamespace(path="the recording stand-in")
    binding.max_ctas = max_ctas
    return binding


def launch_on(
    monkeypatch: pytest.MonkeyPatch, worker: Worker, facts: list[DeviceInfo]
) -> NcclCommunicator:
    """Launch on the stand-in's devices; the ranks are threads, and rank r has device r."""
    _seats[facts[worker.rank].device] = worker
    monkeypatch.setattr(module, "CtypesBinding", bind)
    monkeypatch.setattr(module, "CupyStreams", lambda device: _seats[device].streams)
    monkeypatch.setattr(module, "WATCHER", None)  # the stand-in advances in one thread only
    return launch(worker.peers, facts)


def nccls() -> dict[str, str]:
    """Return the variables of NCCL that are set."""
    return {name: text for name, text in os.environ.items() if name.startswith("NCCL_")}


def watch(worker: Worker, name: str) -> list[dict[str, str]]:
    """Record the variables at each call of a function of the binding."""
    seen: list[dict[str, str]] = []
    called = getattr(worker.binding, name)

    def call(*arguments: Any) -> Any:
        seen.append(nccls())
        return called(*arguments)

    setattr(worker.binding, name, call)
    return seen


@pytest.mark.skipif(cupy.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (
            "libcuda.so.1",
            ["there is no NVIDIA driver (libcuda.so.1)", "pip install 'ncclkv[cuda12]"],
        ),
        ("libc.so.6", ["CuPy finds no GPU (cudaError", "nvidia-smi"]),
    ],
)
@pytest.mark.parametrize("size", SIZES)
def test_layer_3_without_a_gpu_every_rank_fails_with_one_text(monkeypatch, size, driver, words):
    monkeypatch.setattr(module, "DRIVER", driver)
    errors = errors_of(size, launch)
    assert len({str(error) for error in errors}) == 1
    for error in errors:
        assert type(error) is LaunchError
        text = str(error)
        assert "NCCL needs a GPU on every rank" in text
        assert f"rank{'s 0, 1' if size > 1 else ' 0'}" in text
        assert all(word in text for word in words), text


@pytest.mark.skipif(cupy.cuda.is_available(), reason="there is a GPU here")
def test_layer_3_a_survey_leaves_the_ranks_usable():
    def body() -> list[str]:
        peers = threads.world(10.0)
        found = survey(peers)
        assert peers.control.allgather(peers.rank) == [0, 1]
        peers.close()
        return [each.obstacle for each in found]

    for obstacles in run_ranks(2, body):
        assert all("no NVIDIA driver" in obstacle for obstacle in obstacles)


@pytest.mark.parametrize("size", SIZES)
def test_layer_2_ranks_with_a_gpu_each_get_a_communicator(monkeypatch, size):
    facts = [facts_of(rank) for rank in range(size)]

    def body(worker: Worker) -> str:
        comm = launch_on(monkeypatch, worker, facts)
        assert (comm.rank, comm.size) == (worker.rank, size)
        ones = worker.streams.put(np.ones(3, np.float32))
        comm.allreduce(ones, ones).wait()
        assert worker.streams.get(ones).tolist() == [size] * 3
        assert worker.binding.max_ctas is None
        comm.close()
        return comm.name

    before = dict(os.environ)
    for name in run_on_standin(size, body):
        assert "share" not in name
        assert "one GPU" not in name
    assert dict(os.environ) == before


def test_layer_2_shared_gpus_are_set_up_and_named(monkeypatch):
    facts = [facts_of(rank, gpu="the one", share=True) for rank in range(2)]
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")

    def body(worker: Worker) -> str:
        seen = watch(worker, "create")
        comm = launch_on(monkeypatch, worker, facts)
        child = comm.duplicate()
        names = comm.name, child.name
        child.close()
        comm.close()
        assert [each["NCCL_MULTI_RANK_GPU_ENABLE"] for each in seen] == ["1", "1"]
        assert [each["NCCL_NVLS_ENABLE"] for each in seen] == ["1", "1"], "the user's own setting"
        assert worker.binding.max_ctas == 2
        return " ".join(names)

    for name in run_on_standin(2, body):
        assert name.count("several ranks on one GPU") == 2
    assert nccls() == {"NCCL_NVLS_ENABLE": "1"}


def test_layer_2_settings_are_there_while_nccl_reads_them_and_at_no_other_time(monkeypatch):
    facts = [facts_of(0)]  # one rank, because threads share one environment
    chosen = settings(facts, 0)

    def body(worker: Worker) -> None:
        created, reduced = watch(worker, "create"), watch(worker, "all_reduce")
        comm = launch_on(monkeypatch, worker, facts)
        array = worker.streams.put(np.ones(4, np.float32))
        assert nccls() == {}
        for _ in range(2):
            comm.allreduce(array, array)
            assert nccls() == {}
        comm.synchronize()
        with comm.capture():
            comm.allreduce(array, array).wait()
        assert created == [chosen]
        # The variables are set at the first launch and in captures; NCCL reads none later.
        assert reduced == [chosen, {}, chosen]
        comm.close()

    run_on_standin(1, body)
    assert nccls() == {}


def test_layer_2_problems_are_raised_by_all_before_anything_is_made(monkeypatch):
    facts = [facts_of(rank, gpu="the one") for rank in range(3)]

    def refuse(*_: object) -> None:
        raise AssertionError("made a stream")

    monkeypatch.setattr(module, "CupyStreams", refuse)
    errors = errors_of(3, lambda peers: launch(peers, facts))
    assert len({str(error) for error in errors}) == 1
    assert "ranks 0, 1, 2 (node0) would share one GPU" in str(errors[0])
    assert "NCCL_RUNTIME_CONNECT" not in os.environ


def test_layer_2_without_an_id_every_rank_fails(monkeypatch):
    def no_id(*_: object) -> bytes:
        raise CommAborted("NCCL 2.32.3: ncclGetUniqueId failed: no network")

    def body(worker: Worker) -> str:
        monkeypatch.setattr(type(worker.binding), "unique_id", no_id)
        with pytest.raises(LaunchError) as caught:
            NcclCommunicator(worker.peers, worker.binding, worker.streams, worker.kernels)
        return str(caught.value)

    for text in run_on_standin(3, body):
        assert text.startswith("rank 0 of 3 could not begin a communicator: ")
        assert "no network" in text


@pytest.mark.parametrize("end", ["fails", "dies"])
def test_layer_2_a_rank_that_cannot_join_is_named_by_the_others_at_once(end):
    def body(worker: Worker) -> str:
        def create(size: int, unique_id: bytes, rank: int, look: Callable[[], None]) -> object:
            if rank == 1:
                raise LaunchError("out of memory")
            while True:  # NCCL waits in the same way for a missing rank
                look()
                time.sleep(0.01)

        worker.binding.create = create
        peers: Any = worker.peers
        if end == "dies":
            peers = HostWithFarewells(peers)  # rank 1's messages are dropped
            peers.calls = SimpleNamespace(ended_ranks=lambda: {1}, describe_calls=lambda ranks: "")
        begin = time.monotonic()
        with pytest.raises(KVStoreError) as caught:
            NcclCommunicator(peers, worker.binding, worker.streams, worker.kernels)
        assert time.monotonic() - begin < stretched(2.0)
        return f"{type(caught.value).__name__}: {caught.value}"

    texts = run_on_standin(3, body)
    assert texts[1] == "LaunchError: rank 1 of 3: out of memory"
    for rank in (0, 2):
        words = {
            "fails": "RankLost: rank {} of 3: rank 1 left while NCCL connected the ranks; "
            "farewell: LaunchError: out of memory",
            "dies": "RankDied: rank {} of 3: rank 1 ended while NCCL connected the ranks, and sent "
            "no farewell",
        }
        assert texts[rank] == words[end].format(rank)
