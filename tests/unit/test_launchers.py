"""Processes of launchers that MPI does not know: no store of all ranks is alone unnoticed."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv import env, launchers, testing
from ncclkv.errors import LaunchError
from ncclkv.launchers import OF_MPI, OTHERS, RANK_ONLY, Launcher

ALL_RANKS = ("dist", "dist_sync", "nccl", "dist_device_sync")
"""Names of stores over all ranks."""


def variables(launcher: Launcher, size: int, rank: str = "0") -> dict[str, str]:
    """Return the variables that a launcher sets in each of `size` processes."""
    mark = {launcher.mark: "x"} if launcher.mark else {}
    return {launcher.size: str(size), launcher.rank: rank, **mark}


def name_of(launcher: Launcher) -> str:
    """Return a short name for a test's parameters."""
    return "-".join((launcher.name.split()[0], launcher.size, launcher.mark)).rstrip("-")


each_other = pytest.mark.parametrize("launcher", OTHERS, ids=name_of)


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables of all launchers; the program is ``python ddp.py --lr 0.1``."""
    names = {name for each in (*OF_MPI, *OTHERS) for name in each[1:] if name}
    for name in {*names, *RANK_ONLY, "NCCLKV_ALONE"}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["ddp.py", "--lr", "0.1"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(launchers, "_python", lambda: "python")


def set_all(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    for name, text in settings.items():
        monkeypatch.setenv(name, text)


def refusal(name: str = "dist") -> str:
    """Return the text of the error of a store over all ranks."""
    with pytest.raises(LaunchError) as caught:
        ncclkv.create(name)
    return str(caught.value)


@each_other
@pytest.mark.parametrize("name", ALL_RANKS)
def test_one_of_several_processes_is_refused(
    launcher: Launcher, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, variables(launcher, 2, "worker" if "DMLC" in launcher.size else "1"))
    assert refusal(name) == (
        f"{launcher.size}=2 says that {launcher.name} started this process, which ncclkv cannot "
        f"join; type: ncclkv run -n 2 -- python ddp.py --lr 0.1; or set NCCLKV_ALONE=1 for one "
        f"store a process"
    )


@each_other
def test_one_process_is_no_reason(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, variables(launcher, 1, "worker" if "DMLC" in launcher.size else "0"))
    for name in ("dist", "dist_sync"):
        with ncclkv.create(name) as kv:
            assert kv.num_workers == 1


@each_other
def test_who_means_it_is_alone(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {**variables(launcher, 4), "NCCLKV_ALONE": "1"})
    with ncclkv.create("dist") as kv:
        assert kv.num_workers == 1


@each_other
@pytest.mark.parametrize("name", ["local", "device", "local_allreduce_cpu"])
def test_stores_of_one_process_are_untouched(
    launcher: Launcher, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, variables(launcher, 4))
    with ncclkv.create(name) as kv:
        assert kv.num_workers == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"WORLD_SIZE": "2"},
        {"WORLD_SIZE": "two", "RANK": "0"},
        {"WORLD_SIZE": "", "RANK": "0"},
        {"DMLC_NUM_WORKER": "4"},
        {"HOROVOD_RANK": "0"},
        {"SLURM_ARRAY_TASK_ID": "3", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},
    ],
    ids=str,
)
def test_variables_that_say_nothing(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, settings)
    ncclkv.create("dist").close()


@pytest.mark.parametrize("role", ["server", "scheduler"])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_server_of_mxnet(role: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"DMLC_ROLE": role, "DMLC_NUM_WORKER": str(workers)})
    assert refusal() == (
        f"DMLC_ROLE={role} says that MXNet's launcher started this process as a {role}; ncclkv has "
        f"no servers and no scheduler; type: ncclkv run -n {workers} -- python ddp.py --lr 0.1"
    )


@pytest.mark.parametrize("launcher", [each for each in OTHERS if each.local_size], ids=name_of)
@pytest.mark.parametrize(
    ("size", "hosts"),
    [
        (8, "{}:4,HOST2:4"),
        (12, "{}:4,HOST2:4,HOST3:4"),
        (32, "{}:4,...,HOST8:4"),
    ],
)
def test_several_hosts(
    launcher: Launcher, size: int, hosts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, {**variables(launcher, size), launcher.local_size: "4"})
    if launcher.address:
        monkeypatch.setenv(launcher.address, "node7")
    line = f"ncclkv run --hosts {hosts.format('node7' if launcher.address else 'HOST1')}"
    assert f"on one host, type: {line} -- python ddp.py --lr 0.1; or" in refusal()


def test_the_first_of_two_launchers_may_have_started_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_all(monkeypatch, {"WORLD_SIZE": "1", "RANK": "0", "HOROVOD_SIZE": "3", "HOROVOD_RANK": "0"})
    assert refusal().startswith("HOROVOD_SIZE=3 says that horovodrun started this process")


def test_a_runner_of_one_rank_inside_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check ``torchrun --no-python ncclkv run -n 1``: each of several runners has one rank."""
    set_all(monkeypatch, {"WORLD_SIZE": "2", "RANK": "0", "NCCLKV_RESTART": "0"})
    assert "type: ncclkv run -n 2 -- python ddp.py" in refusal()


def test_one_rank_of_mpirun_inside_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"PMI_SIZE": "1", "PMI_RANK": "0", "WORLD_SIZE": "1", "RANK": "0"})
    ncclkv.create("dist").close()
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert refusal().startswith("WORLD_SIZE=3 says that ")


def test_a_trainer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"WORLD_SIZE": "2", "RANK": "0"})
    with pytest.raises(LaunchError, match="ncclkv run -n 2"):
        ncclkv.Trainer({"w": np.zeros(2)}, "sgd")


def test_a_wrapped_module_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    import ncclkv.torch

    set_all(monkeypatch, {"WORLD_SIZE": "2", "RANK": "0"})
    with pytest.raises(LaunchError, match="ncclkv run -n 2"):
        ncclkv.torch.DataParallel(torch.nn.Linear(2, 2))


def test_ranks_that_are_threads_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"WORLD_SIZE": "2", "RANK": "0"})

    def body() -> int:
        with ncclkv.create("threads") as kv:
            return kv.num_workers

    assert testing.run_ranks(3, body) == [3, 3, 3]


@pytest.mark.parametrize("launcher", OF_MPI, ids=name_of)
def test_a_launcher_of_mpi(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, variables(launcher, 4, "2"))
    started = env.launched()
    assert started is not None
    assert (started.launcher.name, started.size, started.rank) == (launcher.name, 4, 2)
    assert (env.launched_size(), env.launched_rank()) == (4, 2)


@pytest.mark.parametrize("variable", RANK_ONLY)
def test_a_launcher_that_gives_a_rank_alone(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "3")
    assert env.launched_without_size()
    assert env.other_rank() == f"{variable}=3"
    monkeypatch.setenv(variable, "0")
    assert env.launched_without_size()
    assert env.other_rank() == ""


@pytest.mark.parametrize(
    ("argv", "module", "interactive", "expected"),
    [
        (["train.py", "my data"], None, False, "python train.py 'my data'"),
        (["/x/app/__main__.py", "-v"], "app.__main__", False, "python -m app -v"),
        (["/x/app/train.py"], "app.train", False, "python -m app.train"),
        (["app.pyz", "-v"], "__main__", False, "python app.pyz -v"),
        (["-c"], None, False, "python SCRIPT"),
        ([""], None, False, "python SCRIPT"),
        (["/x/ipykernel_launcher.py", "-f", "k"], "ipykernel_launcher", True, "python SCRIPT"),
    ],
)
def test_this_program(
    argv: list[str],
    module: str | None,
    interactive: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Spec:
        name = module

    spec: Any = Spec if module else None
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    if interactive:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert launchers.this_program() == expected
