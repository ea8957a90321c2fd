"""Tracebacks in a Jupyter kernel: the cells' lines alone, and all frames on request."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest

from tests.harness.notebook import Notebook, opened

SHOWN = 0 if sys.version_info >= (3, 11) else 1
"""Functions of the package that an error of a call shows."""

MOST = 8 + 15 * SHOWN
"""Lines that a notebook shows of an error in a cell of a line."""

BEGIN = """
import numpy as np, ncclkv
kv = ncclkv.create("local")
kv.init("w", np.zeros(3))
def train():
    with ncclkv.create("dist") as kv:
        kv.push("x", np.ones(3))
def update(key, grad, stored):
    raise ZeroDivisionError("mine")
updated = ncclkv.create("local")
updated.init("w", np.zeros(3))
updated.set_updater(update)
"""

CELLS = [
    ("kv.init('w', np.zeros(3))", "KeyAlreadyInitialized"),
    ("kv.push('x', np.ones(3))", "KeyNotInitialized"),
    ("with kv.overlap(): pass", "UsageError"),
    ("ncclkv.create('loacl')", "UsageError"),
    ("ncclkv.optimizer.SGD(learning_rate=-1)", "UsageError"),
    ("ncclkv.Trainer({}, 'sgd')", "UsageError"),
    ("ncclkv.comm.world().allreduce(np.ones(3), np.ones(2))", "UsageError"),
]
"""A line, and the error that it raises."""

DIFFERS = """
def differs():
    with ncclkv.create("dist") as kv:
        if kv.rank:
            kv.barrier()
        kv.allreduce(1)
ncclkv.testing.run_ranks(2, differs)
"""

IN_FUNCTIONS = [
    ("ncclkv.testing.run_ranks(3, train)", "KeyNotInitialized", "train"),
    ("updated.push('w', np.ones(3))", "ZeroDivisionError", "update"),
]
"""Lines that call functions of the program, and the function that shows the error."""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with opened(tmp_path_factory.mktemp("notebook")) as made:
        assert made.run(BEGIN).error == ""
        yield made


def files(traceback: list[str]) -> list[str]:
    """Return the files of the package that a traceback shows."""
    return re.findall(r"^File (\S*ncclkv/\S+\.py)", "\n".join(traceback), re.MULTILINE)


@pytest.mark.parametrize(("line", "error"), CELLS)
def test_an_error_is_a_few_lines(notebook: Notebook, line: str, error: str) -> None:
    shown = notebook.run(line)
    assert shown.error == error
    assert line.split("(")[0] in "\n".join(shown.traceback)
    assert f"{error}: " in shown.traceback[-1]
    assert len(files(shown.traceback)) <= SHOWN
    assert len(shown.traceback) <= MOST, shown.traceback


@pytest.mark.parametrize(("line", "error", "function"), IN_FUNCTIONS)
def test_functions_of_the_program_are_shown(
    notebook: Notebook, line: str, error: str, function: str
) -> None:
    shown = notebook.run(line)
    assert shown.error == error
    text = "\n".join(shown.traceback)
    assert line in text
    assert re.search(rf"in {function}\(", text)
    assert len(files(shown.traceback)) <= 2 * SHOWN


def test_a_call_is_named_by_its_cell(notebook: Notebook) -> None:
    number = notebook.run("print(len(In))").text.strip()
    shown = notebook.run(DIFFERS)
    text = "\n".join(shown.traceback)
    assert shown.error == "OrderMismatch", text
    assert re.search(rf"called allreduce\(.*?\) at Cell In\[{number}\]:5, but rank 1", text), text
    assert f"called barrier() at Cell In[{number}]:4" in text


def test_all_frames_on_request(notebook: Notebook) -> None:
    variable = "import os; os.environ['NCCLKV_TRACEBACK'] = "
    notebook.run(f"{variable}'full'")
    shown = notebook.run("kv.push('x', np.ones(3))")
    notebook.run(f"{variable}'user'")
    assert any("kvstore.py" in file for file in files(shown.traceback)), shown.traceback
