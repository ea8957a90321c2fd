"""A fault, and the tests that are to find it."""

from __future__ import annotations

import sys
from dataclasses import dataclass

LAYERS = ("0", "2", "3", "3b")
"""Layers of tests: single parts; the recording stand-in; libraries without a GPU; emulated device.
"""


class Stale(Exception):
    """The text that a mutant replaces is not in its file exactly once."""


@dataclass(frozen=True)
class Selection:
    """Tests of one layer: those of a file that pytest's ``-k`` chooses by `keyword`."""

    layer: str
    path: str
    """Path of the file, from the folder ``tests``."""
    keyword: str = ""
    ranks: int = 0
    """Count of ranks; 0 for a process without MPI."""
    environment: tuple[str, ...] = ()
    """Variables and their values, such as ``NCCLKV_COMPILED=0``."""

    def __str__(self) -> str:
        chosen = f"{self.path} -k {self.keyword!r}" if self.keyword else self.path
        return " ".join([*self.environment, chosen])

    def command(self) -> list[str]:
        """Return the command that runs them."""
        settings = ["env", *self.environment] if self.environment else []
        emulated = [sys.executable, "-m", "tests.nccl.emulated"] if self.layer == "3b" else []
        python = ["launch/local.sh", "-n", str(self.ranks)] if self.ranks else [sys.executable]
        chosen = [f"tests/{self.path}", *(["-k", self.keyword] if self.keyword else [])]
        # Ranks must go on together.
        quick = [] if self.ranks else ["-x"]
        return [
            *settings,
            *emulated,
            *python,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            *quick,
            *chosen,
        ]


@dataclass(frozen=True)
class Mutant:
    """One fault: a text that occurs once in a file, and its replacement."""

    name: str
    file: str
    """Path of the file, from the root of the repository."""
    old: str
    new: str
    why: str
    """Consequence for a user."""
    tests: tuple[Selection, ...]
    """Selections of tests that must each fail, the cheapest first."""

    def plant(self, text: str) -> str:
        """Return the file's text with the fault; raise `Stale` unless the old text occurs once."""
        found = text.count(self.old)
        if found != 1:
            raise Stale(f"{self.file} has the text to replace {found} times: {self.old!r}")
        return text.replace(self.old, self.new)
