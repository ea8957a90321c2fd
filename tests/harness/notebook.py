"""A notebook: cells that a Jupyter kernel executes, as the program nbclient does."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tests.harness.slow import stretched
from tests.harness.source import ROOT

_COLORS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Shown:
    """Output of a cell.

    Attributes
    ----------
    text : str
        What the cell has printed.
    error : str
        The name of the exception that left the cell; empty without one.
    traceback : list of str
        The lines that the notebook shows of the exception, without colors.
    """

    text: str
    error: str
    traceback: list[str]


class Notebook:
    """A running kernel."""

    def __init__(self, client: NotebookClient) -> None:
        self._client = client
        self._count = 0

    def run(self, source: str) -> Shown:
        """Execute a cell."""
        cell: Any = new_code_cell(source)
        self._client.nb.cells.append(cell)
        self._client.execute_cell(cell, self._count)
        self._count += 1
        text, error, traceback = "", "", []
        for output in cell.outputs:
            if output.output_type == "stream":
                text += output.text
            elif output.output_type == "error":
                error = output.ename
                traceback = _COLORS.sub("", "\n".join(output.traceback)).splitlines()
        return Shown(text, error, traceback)

    def interrupt(self) -> None:
        """Press the stop button; any thread may call."""
        asyncio.run(self._client.km.interrupt_kernel())


@contextmanager
def opened(directory: Path, **variables: str) -> Iterator[Notebook]:
    """Start a kernel with these environment variables; the block may execute cells in it."""
    client = NotebookClient(
        new_notebook(),
        timeout=int(stretched(30)),
        allow_errors=True,
        resources={"metadata": {"path": str(directory)}},
    )
    # Its own history and settings: the user's may be in use, and may change what is shown.
    paths = {name: str(directory) for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR")}
    env = {**os.environ, "PYTHONPATH": str(ROOT), **paths, **variables}
    with client.setup_kernel(env=env, cwd=str(directory)):
        yield Notebook(client)
