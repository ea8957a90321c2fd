"""Statements of the README, checked against the package."""

from __future__ import annotations

import re
from pathlib import Path

import ncclkv
from ncclkv.store.backends import RANKS
from tests.conformance.readme import README, check_first_program


def test_the_first_program_runs_on_one_rank() -> None:
    check_first_program(0, 1)


def test_every_store_name_is_documented() -> None:
    text = README.read_text()
    assert [name for name in RANKS if f"`{name}`" not in text and "async" not in name] == []


def test_every_verb_it_names_exists() -> None:
    table = re.search(r"## What a store does\n(.*?)\n\nEvery verb", README.read_text(), re.DOTALL)
    assert table is not None
    first_column = re.findall(r"^\| (.*?) \|", table[1], re.MULTILINE)
    names = re.findall(r"`(\w+)`", " ".join(first_column))
    assert len(names) > 10
    assert [name for name in names if not hasattr(ncclkv.KVStore, name)] == []


def test_every_link_has_a_target() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README.read_text())
    assert links
    assert [link for link in links if not Path(README.parent, link).exists()] == []
