"""Files that the documents name, checked against the tree; the map names all modules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.source import PACKAGE, ROOT

PAGE = ROOT / "docs" / "architecture.md"
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))

KINDS = (
    "an optimizer",
    "a placement of updates",
    "a codec",
    "a method to share memory on a node",
    "a kind of store",
    "an event",
)
"""Kinds of change that the page must have a row for."""

ENTRY = re.compile(r"( {0,8})(\w+)/\s+(.*)")
PATH = re.compile(r"`(?!DIR)([\w-]+(?:/[\w.*-]+)+/?)`")
IMPLICIT = {"__init__", "__main__"}

Rows = dict[str, tuple[list[str], list[str]]]
"""Paths in the columns "files" and "rows in tables", by kind of change."""


def parse_map(page: str) -> dict[str, set[str]]:
    """Return the names that each folder's entry has outside of parentheses.

    Examples
    --------
    >>> parse_map("## The map\\n```\\na/  b (c), d\\n    e\\n  f/  g\\n```")
    {'a': {'b', 'd', 'e'}, 'a/f': {'g'}}
    """
    block = page.split("## The map")[1].split("```")[1]
    texts: dict[str, str] = {}
    parents: dict[int, str] = {}
    path = ""
    for line in filter(None, block.splitlines()):
        match = ENTRY.fullmatch(line)
        if match is None:
            texts[path] += f" {line}"
            continue
        indent = len(match[1])
        above = [parents[each] for each in sorted(parents) if each < indent]
        path = "/".join((*above, match[2]))
        parents = {each: name for each, name in parents.items() if each < indent}
        parents[indent] = match[2]
        texts[path] = match[3]
    return {path: set(re.findall(r"[\w./]+", outside(text))) for path, text in texts.items()}


def outside(text: str) -> str:
    """Return a text without its parentheses."""
    return re.sub(r"\([^()]*\)", "", text)


def parse_changes(page: str) -> Rows:
    """Return the paths in each row of the table of changes."""
    section = page.split("## Where a change goes")[1].split("\n## ")[0]
    rows = [line.strip("| ").split("|") for line in section.splitlines() if line.startswith("| ")]
    return {row[0].strip(): (paths(row[1]), paths("|".join(row[2:]))) for row in rows[1:]}


def paths(text: str) -> list[str]:
    """Return the words in code font that have a slash inside."""
    return PATH.findall(text)


def exists(path: str) -> bool:
    """Return whether a path of a document leads to a file or folder; NAME stands for any name.

    A path may start in the package, may lack ``.py``, and may end with an attribute of a module.
    """
    pattern = path.rstrip("/").replace("NAME", "*")
    forms = {pattern, f"{pattern}.py", f"{pattern.rpartition('.')[0] or pattern}.py"}
    return any(any(folder.glob(form)) for folder in (ROOT, ROOT / PACKAGE) for form in forms)


def files_of(folder: Path) -> set[str]:
    """Return the modules of a folder of the package."""
    return {path.stem for path in folder.glob("*.py")} - IMPLICIT


def package_folders() -> Iterator[str]:
    """Yield the folders of the package that hold modules, relative to the repository."""
    for path in [ROOT / PACKAGE, *sorted((ROOT / PACKAGE).rglob("*/"))]:
        if any(path.glob("*.py")):
            yield path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("folder", [*package_folders()])
def test_map_names_every_module_of_a_folder_and_no_other(folder: str) -> None:
    named = {name for name in parse_map(PAGE.read_text())[folder] if not name.endswith("/")}
    missing, gone = files_of(ROOT / folder) - named, named - files_of(ROOT / folder)
    assert not missing, f"add these modules to the map of {folder}/ in {PAGE}: {missing}"
    assert not gone, f"remove these modules from the map of {folder}/ in {PAGE}: {gone}"


def test_map_names_no_file_or_folder_that_is_gone() -> None:
    found = parse_map(PAGE.read_text())
    names = [f"{folder}/{name}" for folder in found for name in found[folder]]
    assert [name for name in (*found, *names) if not exists(name)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_change_touches_at_most_three_files(kind: str) -> None:
    files, tables = parse_changes(PAGE.read_text())[kind]
    assert len(files) <= 3
    assert len(files + tables) >= 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    assert [path for path in paths(page.read_text()) if not exists(path)] == []


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("store/kvstore", True),
        ("store/kvstore.py", True),
        ("table/bucket.place", True),
        ("tests/jobs", True),
        ("kernels/programs/NAME.h", True),
        ("store/gone", False),
        ("tests/gone.py", False),
        ("kernels/gone/NAME.h", False),
    ],
)
def test_missing_files_are_found(path: str, found: bool) -> None:
    assert paths(f"in `{path}`, and `word` or and/or") == [path]
    assert exists(path) == found
