"""Documents of the repository: their code blocks, and their text without them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from textwrap import dedent

from tests.harness.source import ROOT

PAGES = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "tests").rglob("README.md")),
)
"""All documents; a new one is read by all tests of documents without further ado."""

_BLOCK = re.compile(r"(?:^<!-- (.*?) -->\n+)?^( *)```(.*?)\n(.*?)^\2```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A code block of a document.

    Attributes
    ----------
    page : Path
    line : int
        The line of its first line of code.
    language : str
        The word behind the opening fence; empty without one.
    text : str
        The code.
    comment : str
        The comment before the block, which says how it is tested; empty without one.
    output : str
        The text of the block of language `text` that follows at once; empty without one.
    """

    page: Path
    line: int
    language: str
    text: str
    comment: str
    output: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a document, in order."""
    text = page.read_text(encoding="utf-8")
    return parse(page, text)


def parse(page: Path, text: str) -> list[Block]:
    """Return the code blocks of a document's text.

    Examples
    --------
    >>> text = "<!-- not run: no GPU -->\\n```python\\nx = 1\\n```\\n\\n```text\\n1\\n```\\n"
    >>> [block, output] = parse(Path("page.md"), text)
    >>> block.line, block.language, block.text, block.comment, block.output
    (3, 'python', 'x = 1\\n', 'not run: no GPU', '1\\n')
    """
    found: list[Block] = []
    matches = [*_BLOCK.finditer(text)]
    for match, following in zip_longest(matches, matches[1:]):
        comment, _, language, code = match.groups()
        output = ""
        if following and following[3] == "text":
            between = text[match.end() : following.start()]
            output = "" if between.strip() else dedent(following[4])
        line = text.count("\n", 0, match.start(4)) + 1
        found.append(Block(page, line, language, dedent(code), comment or "", output))
    return found


def prose(page: Path) -> str:
    """Return the text of a document without its code blocks."""
    return _BLOCK.sub("\n", page.read_text(encoding="utf-8"))
