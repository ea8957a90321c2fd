"""`run_ranks` in a Jupyter kernel: README's first program, and the stop button."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.readme import first_program
from tests.harness.notebook import Notebook, opened
from tests.harness.slow import stretched

RANKS = 3

TRAIN = """
def train():
    with ncclkv.create("dist") as kv:
        kv.init("w", np.zeros(3))
        print(f"rank {kv.rank} begins", flush=True)
        try:
            while True:
                kv.push("w", np.ones(3))
                kv.pull("w")
                if kv.rank == 1:
                    open("trains", "w").close()
        finally:
            print(f"rank {kv.rank} ends", flush=True)
ncclkv.testing.run_ranks(3, train)
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def notebook(directory: Path) -> Iterator[Notebook]:
    with opened(directory) as made:
        yield made


def test_the_first_program_of_the_readme(notebook: Notebook) -> None:
    body = "".join(f"    {line}\n" for line in first_program().splitlines())
    shown = notebook.run(
        f"def program():\n{body}import ncclkv\nncclkv.testing.run_ranks(4, program)"
    )
    assert shown.error == "", shown
    assert shown.text.count("[10. 10. 10.]") == shown.text.count("[8. 8. 8.]") == 4, shown.text


def test_the_stop_button_ends_the_ranks_within_a_second(
    notebook: Notebook, directory: Path
) -> None:
    pressed: list[float] = []

    def press() -> None:
        while not (directory / "trains").exists():
            time.sleep(0.01)
        pressed.append(time.monotonic())
        notebook.interrupt()

    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    shown = notebook.run(f"import numpy as np, ncclkv\n{TRAIN}")
    assert time.monotonic() - pressed[0] < stretched(1.5)
    assert shown.error == "KeyboardInterrupt", shown
    for word in ("begins", "ends"):
        assert sorted(re.findall(rf"rank \d {word}", shown.text)) == [
            f"rank {rank} {word}" for rank in range(RANKS)
        ], shown.text
    after = notebook.run("import threading; print([t.name for t in threading.enumerate()])")
    assert "rank" not in after.text
    assert notebook.run("print(1 + 1)").text == "2\n"
