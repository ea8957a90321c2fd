"""Statements of the README, and of the pages beside it, checked against the package."""

from __future__ import annotations

import re
import runpy
from configparser import ConfigParser
from importlib.util import find_spec
from inspect import signature

import pytest

import ncclkv
from ncclkv import errors
from ncclkv.errors import OrderMismatch
from ncclkv.store.backends import RANKS
from tests.conformance.readme import README, check_first_program, programs
from tests.harness.source import ROOT

DOCS = ROOT / "docs"
SITE = "https://github.com/ncclkv/ncclkv/"
RAW = "https://raw.githubusercontent.com/ncclkv/ncclkv/main/"


def test_it_is_short() -> None:
    assert 120 <= len(README.read_text().splitlines()) <= 150


def test_the_first_program_runs_on_one_rank() -> None:
    check_first_program(0, 1)


def test_the_output_is_that_of_its_comments() -> None:
    printed = re.search(
        r"\$ mpirun -n 4 python first.py \| sort\n(.*?)```", README.read_text(), re.S
    )
    assert printed is not None
    comments = re.findall(r"# on 4 ranks: (.*)", programs()[0])
    wanted = sorted(f"{rank} {each}" for rank in range(4) for each in comments)
    assert printed[1].splitlines() == wanted


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent")
def test_the_error_is_that_of_its_example() -> None:
    example = runpy.run_path(str(DOCS / "examples" / "order_mismatch.py"))
    with pytest.raises(OrderMismatch) as caught:
        ncclkv.testing.run_ranks(4, example["main"])
    found = re.sub(r"at \S*order_mismatch", "at order_mismatch", str(caught.value))
    shown = re.search(r"OrderMismatch: (rank 0 .*?)```", README.read_text(), re.DOTALL)
    assert shown is not None
    assert found.splitlines()[0] == " ".join(shown[1].split())


def test_the_two_commands_are_there() -> None:
    shown = re.findall(r"^make (\w+)", README.read_text(), re.MULTILINE)
    assert shown == ["train", "test"]
    targets = re.findall(r"^(\w+):.*  ## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(shown) < set(targets)
    assert "\nmpirun -n 4 python train.py\n" in README.read_text()


def test_every_extra_is_one_of_the_package() -> None:
    table = re.search(r"\| extra \| brings \|\n(.*?)\n\n", README.read_text(), re.DOTALL)
    assert table is not None
    first_column = re.findall(r"^\| (.*?) \|", table[1], re.MULTILINE)
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    shown = re.findall(r"`(\w+)`", " ".join(first_column))
    assert len(shown) > 5
    assert [name for name in shown if name not in setup["options.extras_require"]] == []


def test_every_store_name_is_documented() -> None:
    text = (DOCS / "stores.md").read_text()
    assert [name for name in RANKS if f"`{name}`" not in text and "async" not in name] == []


def test_every_option_of_a_store_is_documented() -> None:
    text = (DOCS / "stores.md").read_text()
    _, *options = signature(ncclkv.create).parameters
    assert [name for name in options if f"`{name}=" not in text] == []


def test_every_verb_of_the_page_exists() -> None:
    table = re.search(r"## All verbs\n(.*?)\n\nOptions of", (DOCS / "verbs.md").read_text(), re.S)
    assert table is not None
    first_column = re.findall(r"^\| (.*?) \|", table[1], re.MULTILINE)
    names = re.findall(r"`(?:with kv\.)?(\w+)[`(]", " ".join(first_column))
    assert len(names) > 20
    assert [name for name in names if not hasattr(ncclkv.KVStore, name)] == []


def test_every_error_has_a_place_in_troubleshooting() -> None:
    text = (DOCS / "troubleshooting.md").read_text()
    names = [name for name, kind in vars(errors).items() if isinstance(kind, type)]
    assert len(names) > 20
    assert [name for name in names if not re.search(rf"## {name}\n|`{name}`", text)] == []


def test_every_link_is_absolute_and_has_a_target() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README.read_text())
    assert len(links) > 15
    for link in links:
        place = re.fullmatch(rf"(?:{SITE}blob/main/|{RAW})([^#]+)(?:#([\w-]+))?", link)
        assert place is not None, link
        assert (ROOT / place[1]).exists(), link
        if place[2]:
            titles = re.findall(r"^#+ (.*)", (ROOT / place[1]).read_text(), re.MULTILINE)
            assert place[2] in [title.lower().replace(" ", "-") for title in titles]


def test_every_example_has_a_row() -> None:
    page = (DOCS / "examples.md").read_text()
    names = {path.name for path in (DOCS / "examples").iterdir() if path.is_file()}
    assert [name for name in names if f"](examples/{name})" not in page] == []


GUIDE = (
    *("running", "stores", "verbs", "optimizers", "trainer", "torch", "gpu", "checkpoints"),
    *("communicators", "errors", "troubleshooting", "examples"),
)
"""Pages that have a reason, an example, facts and limits, in this order."""


@pytest.mark.parametrize("page", GUIDE)
def test_a_page_has_its_reason_first_then_an_example_and_limits_last(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text()
    begin, *sections = text.split("\n## ")
    title, reason, *_ = begin.split("\n\n")
    assert title.startswith("# ")
    assert reason.startswith("*Read this page ")
    assert "```" in begin
    assert sections[-1].startswith("Limits\n")
