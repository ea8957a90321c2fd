"""Rules 3 and 5 of CONTRIBUTING.md in documents: the length and the opening of sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.source import ROOT
from tests.unit.test_rules_language import lacks_noun

PAGES = (
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))),
    *sorted((ROOT / "tests").rglob("README.md")),
    *(ROOT / "SECURITY.md", ROOT / "changes.d" / "README.md"),
)
MAX_WORDS = 25

FENCED = re.compile(r"```.*?```", re.DOTALL)
NO_PROSE = re.compile(r"\||#|    ")
"""Beginning of a line of a table, a title or an indented block."""

ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
OPENING = re.compile(r"(Of|Where|With)\b")
BOUNDARY = re.compile(r"(?<=[.!?])(?:\*\*)?\s+(?=[A-Z*`\"(])")


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences of a page; tables, titles and code blocks are left out."""
    lines = []
    for line in FENCED.sub("\n", page).splitlines():
        text = "" if NO_PROSE.match(line) else line
        lines.append(ITEM.sub("\n", text, count=1))
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
        yield from BOUNDARY.split(" ".join(LINK.sub(r"\1", CODE.sub("CODE", paragraph)).split()))


def words(sentence: str) -> int:
    """Return the number of words; signs between spaces do not count."""
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page: Path) -> None:
    assert [each for each in sentences(page.read_text()) if words(each) > MAX_WORDS] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_begin_with_their_subject(page: Path) -> None:
    found = sentences(page.read_text())
    assert [each for each in found if OPENING.match(each) or lacks_noun(each)] == []


def test_sentences_are_found() -> None:
    page = (
        "# Title of a page.\n\nOne [link](to/a/page.md). Two `a b. C` words,\nthree; four.\n\n"
        "- **Item.** Five - six 7. Eight\n- Nine\n\n| a. | B |\n```\na. A\n```\n    code. A.\n"
    )
    found = [*sentences(page)]
    assert [each for each in found if each] == [
        "One link.",
        "Two CODE words, three; four.",
        "**Item.",
        "Five - six 7.",
        "Eight",
        "Nine",
    ]
    assert [words(each) for each in found if each] == [2, 5, 1, 3, 1, 1]
