"""Mutants match the present tree, and each trial has the right verdict."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mutants.mutant import LAYERS, Mutant, Selection, Stale
from tests.mutants.planted import MUTANTS
from tests.mutants.trial import KILLED, NOT_RUN, SURVIVED, judged
from tests.run import ROOT

TESTS = Selection("2", "nccl/test_in_flight.py", "keeps")
IMPORT = re.compile(r"^from (tests[\w.]*) import", re.MULTILINE)
NOT_NAMES = {"and", "True", "False"}
"""Words of a keyword that name no test, case or parameter."""


def add_sources(path: Path, texts: dict[Path, str]) -> None:
    """Add the text of a test's file, and of the test modules that it imports, directly or not."""
    if path in texts:
        return
    texts[path] = path.read_text()
    for name in IMPORT.findall(texts[path]):
        module = ROOT / name.replace(".", "/")
        # A package may import its modules by computed names.
        parts = module.glob("*.py") if module.is_dir() else [module.with_suffix(".py")]
        for part in parts:
            if not part.name.startswith("test_"):
                add_sources(part, texts)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_a_mutant_fits_the_tree(mutant: Mutant) -> None:
    changed = mutant.plant((ROOT / mutant.file).read_text())
    compile(changed, mutant.file, "exec")
    assert mutant.tests, "no test is to find it"
    for each in mutant.tests:
        assert each.layer in LAYERS
        assert (ROOT / "tests" / each.path).is_file(), each


def test_the_words_of_a_keyword_are_in_the_tests_it_chooses_from() -> None:
    missing = []
    for each in dict.fromkeys(each for mutant in MUTANTS for each in mutant.tests):
        texts: dict[Path, str] = {}
        add_sources(ROOT / "tests" / each.path, texts)
        words = set(re.findall(r"[A-Za-z_]\w*", each.keyword)) - NOT_NAMES
        for word in words:
            if not any(word in text for text in texts.values()):
                missing.append(f"{word} of {each}")
    assert missing == []


def test_each_has_a_name_and_a_fault_of_its_own() -> None:
    assert len({each.name for each in MUTANTS}) == len(MUTANTS)
    assert len({(each.file, each.old, each.new) for each in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize(("text", "times"), [("one", 0), ("two two", 2)])
def test_what_is_not_there_once_is_stale(text: str, times: int) -> None:
    mutant = Mutant("name", "file.py", "two", "three", "why", (TESTS,))
    with pytest.raises(Stale, match=f"{times} times: 'two'"):
        mutant.plant(text)


@pytest.mark.parametrize(
    ("code", "output", "verdict"),
    [
        (1, "FAILED tests/nccl/test_x.py::test_y[2] - assert 1 == 2\n1 failed in 2s", KILLED),
        (1, "== test session starts ==\ntest_y: past the limit of 30 s", KILLED),
        (1, "there is no mpirun", NOT_RUN),
        (-11, "Segmentation fault", KILLED),
        (None, "", KILLED),
        (0, "3 passed, 1 skipped in 2s", SURVIVED),
        (0, "3 skipped in 2s", NOT_RUN),
        (5, "12 deselected in 2s", NOT_RUN),
        (2, "SyntaxError: invalid syntax", NOT_RUN),
    ],
)
def test_the_end_of_the_tests_is_the_verdict(code: int | None, output: str, verdict: str) -> None:
    assert judged(code, output, TESTS)[0] == verdict


def test_a_test_that_failed_is_named() -> None:
    output = "x\nFAILED tests/nccl/test_x.py::test_y[a b] - assert 1 == 2\n"
    assert judged(1, output, TESTS) == (KILLED, "tests/nccl/test_x.py::test_y[a b]")
    output = "rank 1 of 2: tests/ranks/test_x.py::test_y[a b]: past the limit of 30 s, and\n"
    assert judged(1, output, TESTS) == (
        KILLED,
        "tests/ranks/test_x.py::test_y[a b] (past its limit)",
    )
