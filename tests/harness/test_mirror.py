"""The tests mirror the source: a test file has the name of the file under test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.source import ROOT

UNIT = ROOT / "tests" / "unit"

OTHERS = {
    "launch/test_recipes.py": "the files of launch/ that a person copies",
    "observe/test_seeded.py": "traces and metrics of stores in seeded worlds",
    "release/test_files.py": "the documents of a release",
    "store/test_interrupted.py": "all verbs of the store, and what an error within them leaves",
    "test_import_time.py": "the whole package: the modules that an import loads",
    "test_readme.py": "README.md, whose sentences it holds to what is so",
    "test_rules_concurrency.py": "the whole source: the one module of clocks and threads",
    "test_rules_imports.py": "the whole source: who imports whom",
    "test_rules_language.py": "the whole source: the language of docstrings",
    "test_rules_map.py": "the documents: the files that they name",
    "test_rules_public.py": "the whole package: its public names",
    "test_rules_sentences.py": "the documents: the length of their sentences",
    "test_rules_source.py": "the whole source: sizes, words, and what only some files may do",
    "test_tutorials.py": "programs of MXNet, each through many parts",
    "test_without_mpi.py": "the whole package on a machine without MPI",
    "test_without_torch.py": "the first use of torch, and a machine without torch",
}
"""Files that mirror no file, and what they test."""

FILES = sorted(
    path.relative_to(UNIT)
    for path in UNIT.rglob("test_*.py")
    if str(path.relative_to(UNIT)) not in OTHERS
)


def mirrored(path: Path) -> bool:
    """Return whether a file or folder with the name of a test file exists.

    ``store/test_create.py`` is of ``ncclkv/store/create.py``, and so is
    ``store/test_create_errors.py``. The folders bench and launch are mirrored, too.
    """
    above = ROOT if path.parts[0] in ("bench", "launch") else ROOT / "ncclkv"
    words = path.stem.removeprefix("test_").split("_")
    for stop in range(len(words), 0, -1):
        place = above / path.parent / "_".join(words[:stop])
        if place.is_dir() or any(place.with_suffix(end).is_file() for end in (".py", ".sh")):
            return True
    return False


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_file_bears_the_name_of_what_it_tests(path: Path) -> None:
    assert mirrored(path), f"tests/unit/{path} mirrors no file; rename it, or name it in OTHERS"


def test_what_mirrors_nothing_is_found() -> None:
    assert mirrored(Path("store/test_create_errors.py"))
    assert mirrored(Path("launch/test_local.py"))
    assert not mirrored(Path("store/test_nothing.py"))
    assert not mirrored(Path("test_create.py"))


def test_the_others_are_there() -> None:
    assert [name for name in OTHERS if not (UNIT / name).is_file()] == []
