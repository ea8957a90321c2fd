"""The runner of the whole suite, over small commands."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest

from tests import run
from tests.harness import layers
from tests.nccl import gpu
from tests.suite import Run


def python(name: str, program: str, limit: float = 20.0) -> Run:
    return Run(name, (sys.executable, "-c", program), limit)


def test_what_passed_and_what_failed_is_said(monkeypatch, capfd):
    commands = [python("good", ""), python("bad", "raise SystemExit(5)"), python("last", "")]
    monkeypatch.setattr(run, "suite", lambda: commands)
    assert run.main([]) == 1
    text = capfd.readouterr().out
    assert "===== bad: FAILED with exit code 5" in text
    assert "===== last: passed" in text, "the runs after a failure must go on"
    assert text.endswith("runs: 2 passed, 1 failed\n")


def test_runs_can_be_named(monkeypatch, capfd):
    monkeypatch.setattr(run, "suite", lambda: [python("a", ""), python("b", "raise SystemExit(1)")])
    assert run.main(["a"]) == 0
    assert capfd.readouterr().out.endswith("runs: 1 passed, 0 failed\n")
    assert run.main(["c"]) == 2
    assert "no such run: c; there are a b" in capfd.readouterr().out


def test_run_past_its_limit_is_stopped_with_all_it_started(tmp_path):
    signs = tmp_path / "signs of life"
    child = f"import time\nwhile True: open({str(signs)!r}, 'a').write('.'); time.sleep(0.1)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    begin = time.monotonic()
    assert run.execute(python("slow", parent, limit=3)) == "FAILED: stopped after 3 s"
    assert time.monotonic() - begin < 15
    seen = signs.stat().st_size
    assert seen > 0
    time.sleep(1)
    assert signs.stat().st_size == seen, "the child lives on"


def test_suite_names_every_run_once():
    names = [each.name for each in run.suite()]
    assert len(set(names)) == len(names)
    assert {"unit", "jobs", "ranks-1", "ranks-2", "ranks-3", "ranks-4"} <= set(names)


@pytest.mark.parametrize(
    ("nodeid", "layer"),
    [
        ("tests/nccl/test_standin_store.py::test_case[keys.x-1-root]", "2"),
        ("tests/nccl/test_launch_ranks.py::test_layer_3_a_survey[2]", "3"),
        ("tests/nccl/test_gpu_kernels.py::test_x", "4"),
        ("tests/unit/comm/messages/test_progress.py::test_x", None),
    ],
)
def test_the_layer_of_a_test_of_nccl(nodeid: str, layer: str | None, monkeypatch) -> None:
    monkeypatch.delenv("NCCLKV_EMULATED", raising=False)
    assert layers.layer_of(nodeid) == layer
    monkeypatch.setenv("NCCLKV_EMULATED", "1")
    assert layers.layer_of(nodeid) == ("3b" if layer == "4" else layer)


def test_the_closing_line_counts_what_passed(monkeypatch) -> None:
    monkeypatch.delenv("NCCLKV_EMULATED", raising=False)
    passed = SimpleNamespace(nodeid="tests/nccl/test_standin_store.py::test_case")
    other = SimpleNamespace(nodeid="tests/unit/test_env.py::test_x")
    skipped = SimpleNamespace(nodeid="tests/nccl/test_gpu_kernels.py::test_x")
    line = layers.summary({"passed": [passed, passed], "skipped": [skipped]})
    assert "2 (recording stand-in, not NCCL): 2 passed;" in line
    assert "4 (one rank on a GPU): none passed;" in line
    assert layers.summary({"passed": [other]}) == ""
    monkeypatch.setenv("NCCLKV_EMULATED", "1")
    line = layers.summary({"passed": [skipped]})
    assert "3b (CuPy on an emulated device, no GPU): 1 passed;" in line
    assert "4 (one rank on a GPU): none passed;" in line


def test_without_a_gpu_a_sentence_says_so(monkeypatch, capfd):
    monkeypatch.setattr(gpu, "missing", lambda: "there is none")
    monkeypatch.delenv("NCCLKV_REQUIRE_GPU", raising=False)
    assert run.main(["gpu"]) == 0
    assert capfd.readouterr().out == "no test of a GPU can run: there is none\n"
    monkeypatch.setenv("NCCLKV_REQUIRE_GPU", "1")
    assert run.main(["gpu"]) == 1


def test_every_file_of_a_run_exists():
    paths = {word for each in run.suite() for word in each.command if word.startswith("tests/")}
    paths |= {
        word.removeprefix("--ignore=")
        for each in run.suite()
        for word in each.command
        if word.startswith("--ignore=")
    }
    assert {path for path in paths if not (run.ROOT / path).exists()} == set()
