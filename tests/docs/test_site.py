"""The site, built as ``make docs`` does, with warnings as errors."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest

from docs.pages import reference
from tests.harness.slow import stretched
from tests.harness.source import ROOT

pytestmark = [
    pytest.mark.limit(300),
    pytest.mark.skipif(
        find_spec("sphinx") is None,
        reason="Sphinx is not installed: the site is not built (launch/setup.sh docs installs it)",
    ),
]

LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\ssrc=\"([^\"]*)\"|<link\b([^>]*)>")
STYLE = re.compile(r"@import|url\(\s*[\"']?(?:https?:)?//")
HREF = re.compile(r"<a\b[^>]*\shref=\"([^\"]*)\"")
ID = re.compile(r"\sid=\"([^\"]*)\"")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site from nothing."""
    folder = tmp_path_factory.mktemp("site")
    options = ("-W", "--keep-going", "-q", "-d", str(folder / "doctrees"))
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(folder / "html")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=stretched(280),
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "html"


def html(site: Path) -> Iterator[Path]:
    yield from sorted(site.rglob("*.html"))


def test_every_public_name_has_its_place(site: Path) -> None:
    found = {name for page in html(site / "reference") for name in ids(page)}
    for module in reference.modules():
        assert {f"{module}.{name}" for name in reference.own(module)} - found == set()


def test_it_is_read_without_a_network(site: Path) -> None:
    for page in html(site):
        for source, link in LOADED.findall(page.read_text()):
            loaded = source or link
            assert not re.search(r"(https?:)?//", loaded), f"{page.name} loads {loaded}"
    for style in site.rglob("*.css"):
        assert not STYLE.search(style.read_text()), style


def test_every_link_inside_leads_to_its_place(site: Path) -> None:
    lost = []
    for page in html(site):
        for target in set(HREF.findall(page.read_text())):
            name, _, part = target.partition("#")
            path = page.parent / unquote(name) if name else page
            if re.match(r"\w+:", target) or (path.exists() and (not part or part in ids(path))):
                continue
            lost.append(f"{page.relative_to(site)}: {target}")
    assert lost == []


@cache
def ids(page: Path) -> frozenset[str]:
    """Return the anchors of a page of the site; those of tops of pages are empty or ``top``."""
    return frozenset({"", "top", *ID.findall(page.read_text())})


def test_the_search_finds_names_and_words(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    for word in ("allreduce", "nccl", "NCCLKV_TIMEOUT", "--max-restarts"):
        assert word in index, word
