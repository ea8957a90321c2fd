"""The command lines in all documents: the real parsers and the Makefile accept them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

from ncclkv.cli import COMMANDS, make_parsers
from ncclkv.errors import LaunchError
from tests.harness.pages import PAGES, blocks, prose
from tests.harness.source import ROOT

PROMPTS = {"": r"(?:\$ )?", "bash": "", "sh": "", "console": r"\$ ", "text": r"\$ "}
"""Languages of blocks that may hold command lines, and what stands before the commands."""

COMMAND = r"(?:[A-Z]\w*=\S* )*((?:ncclkv|make|pip) [\w-]+(?: .*)?)"
"""A command of ours, perhaps behind variables."""

INLINE = re.compile(r"`((?:ncclkv run|make) [^`]*)`")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
EXTRA = re.compile(r"(?:ncclkv|\.)\[(\w+(?:,\w+)*)\]")


def extras() -> set[str]:
    """Return the extras of the package."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return set(setup["options.extras_require"])


def commands(page: Path) -> Iterator[str]:
    """Yield the command lines of a document: in blocks, and whole ones in its text."""
    for block in blocks(page):
        if (prompt := PROMPTS.get(block.language)) is not None:
            yield from re.findall(f"^{prompt}{COMMAND}$", block.text, re.MULTILINE)
    for line in INLINE.findall(prose(page)):
        if line.startswith("make ") or " -- " in line:
            yield line


def refused(line: str) -> str:
    """Return why a command line would be refused; empty if it would not."""
    words = shlex.split(line.partition(" //")[0], comments=True)
    program, *rest = words
    if program == "make":
        targets = [word for word in rest if "=" not in word]
        return "" if TARGETS.issuperset(targets) else f"{targets} are no targets"
    if program == "pip":
        found = EXTRA.search(line)
        named = set(found[1].split(",")) if found else set()
        return "" if named <= extras() else f"{named - extras()} are no extras"
    command = rest[0] if rest else ""
    if command not in COMMANDS:
        return f"there is no command {command!r}"
    try:
        make_parsers()[1][command].parse_args(rest[1:])
    except LaunchError as error:
        return str(error)
    except SystemExit:  # --help and --version
        pass
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_command_lines_are_accepted(page: Path) -> None:
    assert {line: why for line in commands(page) if (why := refused(line))} == {}


def test_command_lines_are_found() -> None:
    assert len([line for page in PAGES for line in commands(page)]) > 15


@pytest.mark.parametrize(
    "line",
    [
        "ncclkv run -n 4 --restarts 3 -- python train.py",
        "ncclkv run -n four -- python train.py",
        "ncclkv start",
        "make nothing RUNS=unit",
        "pip install 'ncclkv[mpi,cuda99]'",
    ],
)
def test_a_wrong_command_line_is_found(line: str) -> None:
    assert refused(line)


@pytest.mark.parametrize(
    "line",
    [
        "ncclkv run --hosts node1:4,node2:4 -- python train.py      // or --hostfile FILE",
        "ncclkv explain DIR   # after a failure",
        "ncclkv run --help",
        "make test RUNS='unit ranks-3'",
        "pip install '.[mpi]'",
        "pip install torch",
    ],
)
def test_a_right_command_line_is_accepted(line: str) -> None:
    assert not refused(line)
