"""Environment variables: wrong values and unknown names, on one rank or on several."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import ncclkv
from ncclkv import env, launchers, testing
from ncclkv.comm.diagnosis import roster
from ncclkv.comm.host import threads
from ncclkv.errors import LaunchError

ROOT = Path(__file__).resolve().parents[2]

WRONG = [
    ("NCCLKV_TIMEOUT", "soon", "is not a number of seconds; set one above 0"),
    ("NCCLKV_RANKS_PER_NODE", "abc", "is not a whole number of at least 1"),
    ("NCCLKV_RANKS_PER_NODE", "0", "is not a whole number of at least 1"),
    ("NCCLKV_RANKS_PER_NODE", "²", "is not a whole number of at least 1"),
    ("NCCLKV_RANKS_PER_NODE", "9" * 5000, "is not a whole number of at least 1"),
    ("NCCLKV_NODE_MEMORY", "file", "set one of files, halves, messages"),
    ("NCCLKV_NODE_MEMORY", "window", "set one of files, halves, messages"),
    ("NCCLKV_COMPILED", "no", "set one of 0, 1, or unset it"),
    ("NCCLKV_RESTART", "-1", "is not a whole number of at least 0"),
    ("NCCLKV_ABORT", "off", "set one of 0, 1, or unset it"),
    ("NCCLKV_SHARE_GPU", "yes", "set one of 0, 1, or unset it"),
    ("MXNET_UPDATE_ON_KVSTORE", "False", "is not a whole number of at least 0"),
    ("PMI_SIZE", "²", "is not a whole number of at least 0"),
    ("SLURM_PROCID", "first", "is not a whole number of at least 0"),
]

each_wrong = pytest.mark.parametrize(
    ("name", "text", "allowed"), WRONG, ids=[f"{name}-{text[:4]}" for name, text, _ in WRONG]
)


@each_wrong
def test_a_store_of_one_rank_refuses_a_wrong_value(
    name: str, text: str, allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(LaunchError) as caught:
        ncclkv.create("local")
    assert f"{name}={text!r} " in str(caught.value)
    assert allowed in str(caught.value)


@each_wrong
def test_all_wrong_values_are_listed(
    name: str, text: str, allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert env.wrong() == {}
    monkeypatch.setenv(name, text)
    monkeypatch.setenv("NCCLKV_EXIT_TIMEOUT", "never")
    found = env.wrong()
    assert found.keys() == {name, "NCCLKV_EXIT_TIMEOUT"}
    assert allowed in found[name]


@pytest.mark.parametrize("text", ["0", "1", ""])
def test_values_of_switches(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCLKV_COMPILED", "NCCLKV_ABORT", "NCCLKV_ALONE", "NCCLKV_SHARE_GPU"):
        monkeypatch.setenv(name, text)
    env.check()
    assert env.compiled() == env.abort_on_exception() == (text != "0")
    assert env.share_gpu() == env.alone() == (text == "1")


def test_a_wrong_value_on_one_rank_is_refused_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([None, "NCCLKV_ABORT='off' is not an allowed value", None])

    def check() -> None:
        if (problem := next(answers)) is not None:
            raise LaunchError(problem)

    def body() -> str:
        with pytest.raises(LaunchError) as caught:
            ncclkv.create("threads")
        return str(caught.value)

    monkeypatch.setattr(env, "check", check)
    (text,) = set(testing.run_ranks(3, body))
    assert re.fullmatch(r"rank \d of 3: NCCLKV_ABORT='off' is not an allowed value", text)


def test_ranks_with_different_node_sizes_are_named_by_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {0: 1, 1: None, 2: 2, 3: None}
    own = roster._self

    def told(transport: threads.ThreadTransport) -> roster.Member:
        return own(transport)._replace(ranks_per_node=limits[transport.rank])

    def body() -> str:
        with pytest.raises(LaunchError) as caught:
            ncclkv.create("threads")
        return str(caught.value)

    monkeypatch.setattr(roster, "_self", told)
    for rank, text in enumerate(testing.run_ranks(4, body, timeout=5)):
        assert text == (
            f"rank {rank} of 4: NCCLKV_RANKS_PER_NODE differs between ranks: 1 on rank 0, unset on "
            f"ranks 1, 3, 2 on rank 2; set it to one value on all ranks, or unset it on all"
        )


def test_an_unknown_name_gives_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NCCLKV_TIMEOT", "3")
    monkeypatch.setenv("NCCLKV_XYZZY", "3")
    monkeypatch.setenv("NCCLKV_TEST_SLOW", "3")
    roster._warn_of_unknown.cache_clear()
    for _ in range(2):
        ncclkv.create("local").close()
        testing.run_ranks(3, lambda: ncclkv.create("threads").close())
    assert [record.getMessage() for record in caplog.records] == [
        "ncclkv: unknown variables in the environment: "
        "NCCLKV_TIMEOT (did you mean NCCLKV_TIMEOUT?), NCCLKV_XYZZY"
    ]
    assert caplog.records[0].levelno == logging.WARNING


def test_a_wrong_number_of_a_launcher_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for each in launchers.OF_MPI for name in each[1:3]]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PMI_SIZE", "²")
    assert env.launched_size() is None
    with pytest.raises(LaunchError, match=r"PMI_SIZE='²' is not a whole number of at least 0"):
        ncclkv.create("dist")


@pytest.mark.parametrize(
    ("mark", "by_mpich"), [("HYDI_CONTROL_FD", True), ("SLURM_STEP_NUM_TASKS", False)]
)
def test_slurm_is_not_mpichs_mpirun_though_it_connects_alike(
    mark: str, by_mpich: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for each in launchers.OF_MPI for name in each[1:4] if name]:
        monkeypatch.delenv(name, raising=False)
    for name in "PMI_SIZE", "PMI_RANK", "PMI_FD", mark:
        monkeypatch.setenv(name, "2")
    assert env.launched_by_mpich() == by_mpich


def test_every_variable_in_the_source_is_defined() -> None:
    files = [*ROOT.glob("ncclkv/**/*.py"), *ROOT.glob("launch/*"), *ROOT.glob("bench/**/*.py")]
    named = {name for path in files for name in re.findall(r"\bNCCLKV_[A-Z_]+\b", path.read_text())}
    unknown = named - {*env._CHECKS, *env._OF_TESTS}
    assert not unknown, f"add these variables to _CHECKS in ncclkv/env.py: {unknown}"
    assert all(f"``{name}``" in str(env.__doc__) for name in env._CHECKS if "NCCLKV" in name)
