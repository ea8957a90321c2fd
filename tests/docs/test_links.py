"""Links in all documents: their files and anchors exist.  Pages of others are not visited."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from docs import pages
from docs.pages.of_root import REPOSITORY
from tests.harness.pages import PAGES, prose
from tests.harness.source import ROOT

OWN = re.compile(
    rf"(?:{REPOSITORY}/(?:blob|tree|raw)|{REPOSITORY.replace('github', 'raw.githubusercontent')})"
    r"/main/(.*)"
)
"""Absolute address of a file of the repository, as a package index needs it."""

LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)|(?:href|src)=\"([^\"]+)\"")
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6} +(.*?)#*$", re.MULTILINE)


def links(page: Path) -> list[str]:
    """Return the targets of a document's links and pictures."""
    text = CODE.sub(lambda code: code[0].replace("](", "] ("), prose(page))
    return ["".join(found) for found in LINK.findall(text)]


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub and MyST give to the headings of a document."""
    found: set[str] = set()
    for heading in HEADING.findall(prose(page)):
        slug = first = anchor(heading)
        number = 0
        while slug in found:
            number += 1
            slug = f"{first}-{number}"
        found.add(slug)
    return found


def anchor(heading: str) -> str:
    """Return the anchor of a heading.

    Examples
    --------
    >>> anchor("The `run` command: what it does, and [why](page.md)")
    'the-run-command-what-it-does-and-why'
    """
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip())
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


@cache
def generated() -> set[str]:
    """Return the files in ``docs/reference`` that the build makes."""
    return pages.files()


def broken(page: Path, target: str) -> str:
    """Return what a link lacks; empty if it leads somewhere, or to a page of others."""
    own = OWN.fullmatch(target)
    if own is None and re.match(r"\w+:", target):
        file = re.match(f"{REPOSITORY}/(blob|tree|raw)/", target)
        return "no file of the branch main" if file else ""
    name, _, part = (own[1] if own else target).partition("#")
    path = (ROOT if own else page.parent) / name if name else page
    if path.parent == ROOT / "docs" / "reference":
        return "" if path.name in generated() else "no such page is made"
    if not path.exists():
        return "no such file"
    if part and path.suffix == ".md" and part not in anchors(path.resolve()):
        return "no such heading"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert {link: why for link in links(page) if (why := broken(page, link))} == {}


def test_links_are_found() -> None:
    assert sum(len(links(page)) for page in PAGES) > 20


@pytest.mark.parametrize(
    ("target", "lacks"),
    [
        ("docs/architecture.md", ""),
        ("docs/architecture.md#the-map", ""),
        ("docs/architecture.md#the-mop", "no such heading"),
        ("docs/nothing.md", "no such file"),
        ("docs/reference/ncclkv.KVStore.rst", ""),
        ("docs/reference/ncclkv.optimizer.Sgd.rst", "no such page is made"),
        ("docs/reference/environment.rst", ""),
        (f"{REPOSITORY}/blob/main/docs/architecture.md#the-map", ""),
        (f"{REPOSITORY}/blob/main/docs/nothing.md", "no such file"),
        (f"{REPOSITORY}/tree/main/docs/examples", ""),
        (f"{REPOSITORY}/blob/master/LICENSE", "no file of the branch main"),
        (f"{REPOSITORY}/issues", ""),
        ("https://www.python.org", ""),
    ],
)
def test_a_broken_link_is_found(target: str, lacks: str) -> None:
    assert broken(ROOT / "README.md", target) == lacks
