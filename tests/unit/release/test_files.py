"""Files of a release: the changelog and its fragments, the citation, metadata and the help page."""

from __future__ import annotations

import inspect
import re
import subprocess
from configparser import ConfigParser
from importlib import import_module

import pytest

import ncclkv
from tests.harness.source import ROOT
from tests.unit.test_rules_sentences import MAX_WORDS, sentences, words

FRAGMENT = re.compile(r"\+[a-z0-9-]+\.(added|changed|deprecated|removed|fixed)\.md")
FRAGMENTS = sorted(path for path in (ROOT / "changes.d").iterdir() if path.name != "README.md")
PAGES = ("CHANGELOG.md", "SECURITY.md", "changes.d/README.md", "docs/policy.md")


def metadata() -> dict[str, str]:
    """Return the table `metadata` of setup.cfg."""
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return dict(parser["metadata"])


def test_fragments_are_named_for_towncrier():
    assert [path.name for path in FRAGMENTS if not FRAGMENT.fullmatch(path.name)] == []


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_is_one_or_two_sentences(path):
    text = path.read_text()
    found = [each for each in sentences(text) if each]
    assert 1 <= len(found) <= 2
    assert all(each.endswith(".") and words(each) <= MAX_WORDS for each in found)
    assert not re.search(r"#\d", text), "a number of an issue"


def test_kinds_of_fragments_are_those_of_the_settings():
    settings = (ROOT / "pyproject.toml").read_text()
    kinds = re.findall(r'\[\[tool\.towncrier\.type\]\]\ndirectory = "(\w+)"', settings)
    assert sorted(kinds) == sorted(re.findall(r"\w+", FRAGMENT.pattern.split("(")[1].split(")")[0]))
    start = re.search(r'^start_string = "(.*)\\n"$', settings, re.MULTILINE)
    assert start is not None
    assert f"\n{start[1]}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_citation_agrees_with_the_package():
    citation = (ROOT / "CITATION.cff").read_text()
    about = metadata()
    assert f"\nversion: {ncclkv.__version__}\n" in citation
    assert f"\nlicense: {about['license']}\n" in citation
    assert f"\nrepository-code: {about['url']}\n" in citation
    assert f"\n  - name: {about['author']}\n" in citation


def test_supported_versions_of_python_agree():
    listed = re.findall(r":: Python :: 3\.(\d+)$", metadata()["classifiers"], re.MULTILINE)
    assert listed == ["10", "11", "12", "13", "14"]
    assert f"for minor in {' '.join(listed)};" in (ROOT / "launch" / "pythons.sh").read_text()
    policy = (ROOT / "docs" / "policy.md").read_text()
    assert f"**Python** 3.{listed[0]} to 3.{listed[-1]}." in policy


@pytest.mark.parametrize("name", PAGES)
def test_links_between_the_files_have_targets(name):
    page = ROOT / name
    links = re.findall(r"\]\((?!https:)([^)#]+)[^)]*\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_public_modules_say_what_is_public():
    policy = (ROOT / "docs" / "policy.md").read_text()
    listed = policy.split("`__all__` of")[1].split("and the attributes")[0]
    names = re.findall(r"`(ncclkv[.\w]*)`", listed)
    found = {name: getattr(ncclkv, name) for name in ncclkv.__all__}
    own = {f"ncclkv.{name}" for name, value in found.items() if inspect.ismodule(value)}
    assert set(names) == {"ncclkv", "ncclkv.mxnet", "ncclkv.torch", *own}
    for name in {"ncclkv", *own}:
        module = import_module(name)
        assert [each for each in module.__all__ if not hasattr(module, each)] == [], name
    for name in ("torch", "mxnet"):
        source = (ROOT / "ncclkv" / name / "__init__.py").read_text()
        assert re.search(r"^__all__ = \[", source, re.MULTILINE), name


def test_help_fits_a_terminal_and_begins_with_the_users_targets():
    page = subprocess.check_output(["make", "-s", "help"], cwd=ROOT, text=True)
    assert [line for line in page.splitlines() if len(line) > 80] == []
    order = ["make train", "make bench", "make test", "make wheel", "with train", "with bench"]
    order += ["with any", "for developers", "with test-gpu"]
    places = [page.index(f"\n{each}") for each in order]
    assert places == sorted(places)
