"""Rules 1 and 3 of CONTRIBUTING.md: the openings of docstrings and of their sentences."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.source import ROOT

READ = ("ncclkv", "bench", "docs", "launch", "tests", "setup.py", "train.py")
"""Folders and files whose docstrings are checked."""

QUESTIONS = (
    "what whatever whether where wherever who whom whose whoever how that which whichever when "
    "whenever why if because since"
)
PRONOUNS = (
    "it its they them their these those he she we our you your i my nobody somebody anybody "
    "everybody everyone someone anyone nothing something anything everything none"
)
PREPOSITIONS = "of with without for from by in at as on to so and but or than"
NOT_A_HEAD = frozenset(f"{QUESTIONS} {PRONOUNS} {PREPOSITIONS}".split())
"""First words that are neither a verb nor the noun that the docstring defines."""

VERBS = (
    "is are was were be has have had can cannot could may might must will would shall should do "
    "does did given left made kept gone done says"
)
NO_NOUN = frozenset(
    f"{QUESTIONS} {PREPOSITIONS} {VERBS} it they we you the a an not never also only alone always "
    "still already now then yet here there too".split()
)
"""Words after *one*, *some*, *those*, *this* or *that* which show that no noun follows."""

SENTENCE = re.compile(r"(?:\A|(?<=[.!?:;])\s+|\n\s*\n\s*)")
OPENING = re.compile(r"(One|Some|Those|This|That|It)\b(?!'s\b|-)(?:\s+([\w'`-]+))?")
VERB = re.compile(r"[a-z]+(?<![sui])s")
"""A word in -s, but not in -ss, -us or -is: after a singular determiner it is a verb."""


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of all docstrings: of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            if isinstance(each, ast.Expr):
                text = getattr(each.value, "value", None)
                if isinstance(text, str):
                    yield each.lineno, text


def breaks_rule_1(text: str) -> bool:
    """Return whether the first word is neither a verb nor a noun with its article or number."""
    first = re.match(r"\s*([A-Za-z'-]+)", text)
    return first is not None and first.group(1).lower() in NOT_A_HEAD


def breaks_rule_3(text: str) -> bool:
    """Return whether a sentence begins with one, some, those, it, this or that for a noun."""
    return any(lacks_noun(sentence) for sentence in SENTENCE.split(text))


def lacks_noun(sentence: str) -> bool:
    """Return whether a sentence opens with a word that stands for a noun outside of it."""
    found = OPENING.match(sentence.strip())
    if found is None:
        return False
    word, following = found.groups()
    if word == "It" or following is None or following in NO_NOUN:
        return True
    return word in ("One", "This", "That") and VERB.fullmatch(following) is not None


def breaches(path: Path) -> list[str]:
    """Describe each docstring of a file that breaks a rule."""
    found = []
    for line, text in docstrings(ast.parse(path.read_text(encoding="utf-8"))):
        for number, breaks in ((1, breaks_rule_1), (3, breaks_rule_3)):
            if breaks(text):
                first = " ".join(text.split())[:90]
                found.append(f"{path.relative_to(ROOT)}:{line}: rule {number}: {first}")
    return found


def files() -> list[Path]:
    """Return all files that are checked."""
    found: list[Path] = []
    for each in READ:
        path = ROOT / each
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return found


def test_docstrings_keep_the_rules():
    assert [breach for path in files() for breach in breaches(path)] == []


BREAK_RULE_1 = (
    "What a rank sends.",
    "Whether the store is open.",
    "Where the array lies.",
    "Who waits.",
    "How many ranks there are.",
    "That ranks launch the same.",
    "Which key it is.",
    "Whoever keeps the work need not keep its arrays.",
    "It waits.",
    "They wait.",
    "Its address.",
    "Nobody else writes here.",
    "Of a call that is cached.",
    "\n    What a rank sends, on the second line.\n    ",
)
KEEP_RULE_1 = (
    "Return whether the store is open.",
    "Return what the others sent.",
    "Ranks of a node, in order.",
    "A flag.",
    "One row a key.",
    "All keys.",
    "`Whether`, a class.",
    "``which`` of the shell.",
    "Whole keys.",
    "Itemsize of the dtype, in bytes.",
    "In-place sum of an array.",
    "Thatched.",
    "",
)
BREAK_RULE_3 = (
    "Free the block. It returns to the free list.",
    "Memory of a node; It is shared.",
    "One that has closed.",
    "One waits for the other.",
    "One, or several.",
    "Some of the ranks wait.",
    "Some are absent.",
    "Those that wait.",
    "Those are freed.",
    "This is a flag.",
    "This makes the store closed.",
    "This alone ends a wait.",
    "Copy the array.\n\n    That must never fail.\n    ",
    "That ranks launch the same.",
    "This.",
)
KEEP_RULE_3 = (
    "One row a segment.",
    "One element of the array waits.",
    "One process: no MPI.",
    "One address a rank.",
    "One status for all.",
    "Some ranks wait.",
    "Those ranks wait.",
    "This rank's part.",
    "This class has no state.",
    "That process is this one's parent.",
    "Raise it.",
    "Free the block when it is full.",
    "Items of a list.",
    "Return those that wait.",
    "Itemsize, in bytes.",
    "One-off reductions.",
    "Somewhat slower.",
)


@pytest.mark.parametrize("text", BREAK_RULE_1)
def test_rule_1_finds(text):
    assert breaks_rule_1(text)


@pytest.mark.parametrize("text", KEEP_RULE_1)
def test_rule_1_passes(text):
    assert not breaks_rule_1(text)


@pytest.mark.parametrize("text", BREAK_RULE_3)
def test_rule_3_finds(text):
    assert breaks_rule_3(text)


@pytest.mark.parametrize("text", KEEP_RULE_3)
def test_rule_3_passes(text):
    assert not breaks_rule_3(text)


DOCUMENTED = '''"""Module."""

x = 1
"""Attribute."""


class C:
    """Class."""

    y: int
    """Field."""

    async def f(self):
        """Method."""
        if self:
            "Block."


z = "no docstring"
'''


def test_docstrings_of_every_kind_are_read():
    found = sorted(text for _, text in docstrings(ast.parse(DOCUMENTED)))
    assert found == ["Attribute.", "Block.", "Class.", "Field.", "Method.", "Module."]
