"""The pages that are made from the package leave nothing out."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.pages import commands, environment, of_root, reference, texts, write
from ncclkv import env, errors
from ncclkv.cli import COMMANDS
from tests.harness.source import ROOT, modules


def test_the_table_has_every_variable_that_is_read() -> None:
    (source,) = (module for module in modules() if module.name == "ncclkv.env")
    code = source.text.replace(str(env.__doc__), "")
    read = set(re.findall(r'"((?:NCCLKV|MXNET)_[A-Z_]*[A-Z])"', code)) - {*env._OF_TESTS}
    assert len(read) > 14
    differ = set(environment.table()) ^ read
    assert not differ, f"env.py describes these in its docstring, or reads them, not both: {differ}"


def test_every_variable_has_a_text_and_an_anchor() -> None:
    page = environment.page()
    for name, text in environment.table().items():
        assert f".. envvar:: {name}\n" in page
        assert len(text) > 20
    assert "OMPI_COMM_WORLD_SIZE" in page
    assert "torchrun" in page


def test_the_page_has_every_command_and_the_options_of_its_help() -> None:
    page = commands.page()
    for name, parser in commands.make_parsers()[1].items():
        assert f".. program:: ncclkv {name}\n" in page
        for option in re.findall(r"^  (--?[\w-]+)", parser.format_help(), re.MULTILINE):
            assert re.search(rf"\.\. option:: .*{option}\b", page), option
    assert len(COMMANDS) == page.count(".. program:: ")


def test_a_module_with_a_list_of_names_is_public() -> None:
    listed = {module.name for module in modules() if re.search(r"^__all__ = ", module.text, re.M)}
    listed = {name for name in listed if name.count(".") < 2} - {"ncclkv.concurrency"}
    assert {*reference.modules()} == listed | {"ncclkv.errors"}


@pytest.mark.parametrize("name", reference.modules())
def test_the_reference_has_all_public_names_of(name: str) -> None:
    if name.rpartition(".")[2] in reference.OPTIONAL and find_spec(name.rpartition(".")[2]) is None:
        pytest.skip(f"{name.rpartition('.')[2]} is not installed")
    module = import_module(name)
    tree = [each for each in vars(errors) if isinstance(vars(errors)[each], type)]
    public = {*(tree if module is errors else module.__all__)}
    inner = {each.removeprefix("ncclkv.") for each in reference.modules()}
    assert {*reference.names(name)} == public - (inner if name == "ncclkv" else set())
    page = texts()[f"{name}.rst"]
    assert [each for each in reference.names(name) if not re.search(rf"[ .]{each}\n", page)] == []


def test_no_generated_page_is_kept_in_the_repository() -> None:
    assert "/docs/reference/" in (ROOT / ".gitignore").read_text().splitlines()


def test_links_of_the_documents_of_the_root_work_from_their_pages() -> None:
    blob = f"{of_root.REPOSITORY}/blob/main"
    links = {
        "docs/errors.md#limits": "../errors.md#limits",
        "CHANGELOG.md": "changelog.md",
        "setup.cfg": f"{blob}/setup.cfg",
        "README.md#run": f"{blob}/README.md#run",
        "https://x.org/y.md": "https://x.org/y.md",
        "#language": "#language",
    }
    for link, found in links.items():
        assert of_root.relinked(f"see [x]({link}).") == f"see [x]({found})."


def test_a_page_of_a_name_that_is_gone_is_removed(tmp_path: Path) -> None:
    for name in ("ncclkv.Gone.rst", "ncclkv.KVStore.rst", "environment.rst"):
        (tmp_path / name).write_text("old")
    write(tmp_path)
    assert not (tmp_path / "ncclkv.Gone.rst").exists()
    assert (tmp_path / "ncclkv.KVStore.rst").read_text() == "old"  # autosummary's
    assert (tmp_path / "environment.rst").read_text() != "old"
