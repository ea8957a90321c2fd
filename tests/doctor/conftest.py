"""Settings of the tests of ``ncclkv doctor``: its runs, whose JSON is checked by the schema."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema

from tests.harness.slow import VARIABLE, stretched
from tests.harness.source import ROOT

SCHEMA = json.loads((ROOT / "ncclkv" / "doctor" / "schema.json").read_text())

DOCTOR = (sys.executable, "-m", "ncclkv", "doctor")
MPIRUN = str(Path(sys.executable).with_name("mpirun"))

LIMIT = 45.0
"""Seconds after which a run counts as hanging: a broken job waits for its ranks for a while."""


class Told:
    """The output of a run: its exit code, the text of both streams, the object and its rows."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def table(self) -> dict[str, Any]:
        """Return the JSON, which is as its schema describes it."""
        begin, end = self.out.index("{\n"), self.out.rindex("\n}") + 2
        read: dict[str, Any] = json.loads(self.out[begin:end])
        jsonschema.validate(read, SCHEMA)
        assert read["blocks"] == any(row["level"] == "blocks" for row in read["rows"])
        return read

    def rows(self, thing: str) -> list[dict[str, Any]]:
        """Return the rows of a thing."""
        return [row for row in self.table["rows"] if row["thing"] == thing]

    def row(self, thing: str) -> dict[str, Any]:
        """Return the only row of a thing."""
        found = self.rows(thing)
        assert len(found) == 1, (thing, found, self.err)
        return found[0]

    def levels(self) -> dict[str, str]:
        """Return the things that are not fine, with their levels."""
        wrong = [row for row in self.table["rows"] if row["level"] != "ok"]
        return {row["thing"]: row["level"] for row in wrong}


def run(
    *command: str,
    files: int | None = None,
    first: Sequence[Path] = (),
    **variables: str,
) -> Told:
    """Run a command to its end.

    Parameters
    ----------
    command : str
    files : int, optional
        Its limit of open files.
    first : sequence of Path
        Folders before the project on the path of Python.
    variables : str
        Of its environment.
    """
    dropped = (VARIABLE, "UCX_TLS")
    inherited = {name: os.environ[name] for name in os.environ if name not in dropped}
    path = os.pathsep.join(map(str, (*first, ROOT)))

    def limit_files() -> None:
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    process = subprocess.run(
        command,
        cwd=ROOT,
        env={**inherited, "PYTHONPATH": path, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=stretched(LIMIT),
        preexec_fn=limit_files,
    )
    return Told(process.returncode, process.stdout, process.stderr)


def doctor(*arguments: str, **options: Any) -> Told:
    """Run ``ncclkv doctor --json``."""
    return run(*DOCTOR, "--json", *arguments, **options)


def at_start(folder: Path, program: str) -> Path:
    """Return a folder whose program each Python runs at its start, if it is on the path."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(program)
    return folder
