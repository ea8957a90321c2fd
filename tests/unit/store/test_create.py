"""Names of stores, and the errors for unknown names and wrong arguments."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.comm import Communicator
from ncclkv.comm.host import threads
from ncclkv.errors import LaunchError, NotSupported, RankLost, SpecMismatch, UsageError
from ncclkv.testing import run_ranks
from tests.harness.slow import stretched

ALONE = (
    "local",
    "local_update_cpu",
    "local_allreduce_cpu",
    "device",
    "local_allreduce_device",
    "threads",
    "dist",
    "dist_sync",
)


@pytest.mark.parametrize("name", [*ALONE, "LOCAL", "Device", "Local_AllReduce_CPU"])
def test_a_local_store_has_one_rank(name: str) -> None:
    with ncclkv.create(name) as kv:
        assert kv.type == name.lower()
        assert (kv.rank, kv.num_workers, kv.local_rank) == (0, 1, 0)
        kv.init(3, np.zeros(2))
        kv.push(3, [np.ones(2), np.ones(2)])
        assert kv.pull(3).tolist() == [2, 2]


def test_local_is_the_default() -> None:
    with ncclkv.create() as kv:
        assert kv.type == "local"


@pytest.mark.parametrize("name", ["foo", "", "async", "loacl", "dist_snyc", "foo_dist_bar", "mccl"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        ncclkv.create(name)
    text = str(caught.value)
    assert repr(name) in text
    for known in ("local", "dist_sync", "nccl", "threads"):
        assert known in text
    assert "dist_async" not in text  # a name that no store has


@pytest.mark.parametrize(("typo", "meant"), [("loacl", "local"), ("dist_snyc", "dist_sync")])
def test_a_typo_is_refused_with_the_nearest_name(typo: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean '{meant}'"):
        ncclkv.create(typo)


@pytest.mark.parametrize("name", [None, 3, b"local", ["local"]])
def test_names_that_are_no_strings_are_refused(name: Any) -> None:
    with pytest.raises(UsageError) as caught:
        ncclkv.create(name)
    assert repr(name) in str(caught.value)
    assert "str" in str(caught.value)


@pytest.mark.parametrize("name", ["nccl", "NCCL", "dist_device_sync", "dist_sync_device"])
def test_stores_over_nccl_name_what_is_missing(name: str) -> None:
    with pytest.raises(LaunchError) as caught:
        ncclkv.create(name)
    text = str(caught.value)
    for word in (name.lower(), "NCCL", "dist_sync"):
        assert word in text


@pytest.mark.parametrize("name", ["dist_async", "Dist_Async"])
def test_asynchronous_stores_are_not_supported(name: str) -> None:
    with pytest.raises(NotSupported) as caught:
        ncclkv.create(name)
    assert isinstance(caught.value, NotImplementedError)
    for word in ("dist_async", "dist_sync"):
        assert word in str(caught.value)


def test_threads_have_the_rank_of_their_thread() -> None:
    def body() -> tuple[int, int]:
        with ncclkv.create("threads") as kv:
            return kv.rank, kv.num_workers

    assert run_ranks(4, body) == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_an_error_of_a_rank_is_raised_with_its_rank() -> None:
    def body() -> None:
        with ncclkv.create("threads") as kv:
            if kv.rank == 2:
                raise ZeroDivisionError("mine")
            kv.barrier()

    with pytest.raises(ZeroDivisionError) as caught:
        run_ranks(4, body)
    notes = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "mine" in notes
    assert "rank 2" in notes


def test_comm_is_refused_by_stores_without_one() -> None:
    for name in ("local", "device", "threads"):
        with pytest.raises(UsageError) as caught:
            ncclkv.create(name, comm=object())
        assert name in str(caught.value)
        assert "comm" in str(caught.value)


def test_a_wrong_comm_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        ncclkv.create("dist_sync", comm="COMM_WORLD")
    assert "'COMM_WORLD'" in str(caught.value)
    assert "mpi4py" in str(caught.value)


def test_a_misspelt_option_is_refused() -> None:
    with pytest.raises(TypeError, match="bucket_byte"):
        ncclkv.create("local", bucket_byte=3)


def test_a_local_store_in_a_job_of_several_ranks_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("PMI_RANK", "0")
    for name in ("local", "device", "threads"):
        with pytest.warns(UserWarning, match="4 independent") as caught:
            kv = ncclkv.create(name)
        kv.close()
        assert "create('dist')" in str(caught[0].message)
        assert len(caught) == 1


def test_importing_needs_neither_mpi_nor_a_framework() -> None:
    # A fresh interpreter: this one has imported the modules of other tests.
    program = (
        "import sys, ncclkv, numpy as np\n"
        "kv = ncclkv.create('local'); kv.init(1, np.ones(2)); kv.push(1, np.ones(2)); kv.close()\n"
        "kv = ncclkv.create('dist'); kv.close()\n"
        "print([m for m in ('mpi4py.MPI', 'torch', 'cupy', 'jax') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_fewer_ranks_than_the_launcher_started_are_refused() -> None:
    # One process that takes itself for one of four: launcher and library are of different MPIs.
    program = "import ncclkv; ncclkv.create('dist_sync')"
    promise = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **promise, "NCCLKV_ABORT": "0"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode != 0
    for word in ("LaunchError", "4", "mpirun"):
        assert word in done.stderr


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Communicator]:
    """Record the communicators that stores over threads receive."""
    communicators = []
    world = threads.world

    def noted(*args: Any) -> Communicator:
        communicators.append(world(*args))
        return communicators[-1]

    monkeypatch.setattr(threads, "world", noted)
    return communicators


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("option", [{"update_on": "nonsense"}, {"root": 3}, {"bucket_bytes": -1}])
def test_a_refused_create_closes_its_communicator(
    option: dict[str, Any], size: int, opened: list[Communicator]
) -> None:
    def body() -> None:
        with pytest.raises(UsageError, match=next(iter(option))):
            ncclkv.create("threads", **option)

    run_ranks(size, body)
    assert len(opened) == size
    for comm in opened:
        with pytest.raises(UsageError, match="the communicator is closed"):
            comm.barrier()


def test_a_create_refused_on_one_rank_is_refused_on_all(opened: list[Communicator]) -> None:
    def body(ranks: Iterator[int]) -> None:
        with pytest.raises(SpecMismatch, match="root=-1 is not a rank"):
            ncclkv.create("threads", root=-next(ranks))

    run_ranks(3, body, iter([0, 1, 0]))
    for comm in opened:
        with pytest.raises(UsageError, match="the communicator is closed"):
            comm.barrier()


class Interrupting(int):
    """A number of bytes whose comparison raises KeyboardInterrupt."""

    def __ge__(self, other: object) -> bool:
        raise KeyboardInterrupt


def test_an_interrupted_create_raises_on_all_ranks() -> None:
    seen = threading.Barrier(3)

    def body() -> None:
        if threading.current_thread().name == "rank 1":
            with pytest.raises(KeyboardInterrupt):
                ncclkv.create("threads", bucket_bytes=Interrupting())
        else:
            with pytest.raises(RankLost, match="rank 1 .*KeyboardInterrupt"):
                ncclkv.create("threads")
        # No rank exits earlier: its peers would detect the exit, too.
        seen.wait(20)

    run_ranks(3, body, timeout=stretched(5))


def test_an_unknown_option_is_refused_with_the_nearest_known_one() -> None:
    wrong: dict[str, Any] = {"updat_on": "root"}
    with pytest.raises(UsageError) as caught:
        ncclkv.create("local", **wrong)
    assert str(caught.value).startswith(
        "create has no argument 'updat_on'; did you mean 'update_on'? Valid: name, comm, "
    )
    with pytest.raises(UsageError, match="nonfinite 'rais' is unknown; did you mean 'raise'"):
        ncclkv.create("local", nonfinite="rais")
    with ncclkv.create("local") as kv, pytest.raises(UsageError, match="did you mean 'avg'"):
        kv.init("w", np.zeros(2), op="av")
