"""The public names of the package, each of them documented."""

from __future__ import annotations

import inspect
import pydoc
import rlcompleter

import pytest

import ncclkv

PUBLIC = sorted(ncclkv.__all__)
MODULES = [ncclkv, ncclkv.comm, ncclkv.testing, ncclkv.typing, ncclkv.optimizer]


def test_all_is_what_is_public():
    """Check the list of public names; a module is public only if it is listed."""
    listed = set(ncclkv.__all__)
    assert len(listed) == len(ncclkv.__all__), "a name is listed twice"
    assert [name for name in listed if not hasattr(ncclkv, name)] == []
    names = {name for name in vars(ncclkv) if not name.startswith("_")}
    assert {name for name in names - listed if not inspect.ismodule(getattr(ncclkv, name))} == set()


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_is_documented(name):
    assert inspect.getdoc(getattr(ncclkv, name)), f"ncclkv.{name} has no docstring"


@pytest.mark.parametrize("name", [n for n in PUBLIC if inspect.isclass(getattr(ncclkv, n))])
def test_public_methods_are_documented(name):
    cls = getattr(ncclkv, name)
    methods = {key: value for key, value in inspect.getmembers(cls) if not key.startswith("_")}
    bare = [key for key, value in methods.items() if callable(value) and not inspect.getdoc(value)]
    assert bare == []


def completions(text, **names):
    """Return the completions of a Python prompt."""
    completer = rlcompleter.Completer(names)
    found = []
    while (more := completer.complete(text, len(found))) is not None:
        found.append(more.partition("(")[0])
    return {name.removeprefix(text) for name in found}


@pytest.mark.parametrize("module", MODULES)
def test_modules_complete_to_their_public_names(module):
    names = [name for name in dir(module) if not name.startswith("__")]
    assert sorted(names) == sorted(module.__all__)
    assert completions("module.", module=module) == set(module.__all__)
    assert {"__all__", "__doc__"} <= set(dir(module))


def test_a_store_completes_to_its_verbs():
    with ncclkv.create("local") as kv:
        assert not [name for name in dir(kv) if name.startswith("_") and name[:2] != "__"]
        offered = completions("kv.", kv=kv)
        assert offered == {name for name in dir(ncclkv.KVStore) if not name.startswith("_")}
        assert {"push", "pull", "init", "rank", "num_workers", "save"} <= offered
        assert "__enter__" in dir(kv)


def test_help_begins_with_the_verbs():
    text = pydoc.plain(pydoc.render_doc(ncclkv))
    begin = text[: text.index("PACKAGE CONTENTS")]
    verbs = {name for name in completions("KVStore.", KVStore=ncclkv.KVStore) if name != "mro"}
    missing = {name for name in verbs if callable(getattr(ncclkv.KVStore, name))}
    missing = {name for name in missing if f"``{name}``" not in begin}
    # MXNet's verbs, and verbs of single classes
    rest = {"is_capable", "save_optimizer_states", "load_optimizer_states", "register"}
    assert missing == rest | {"row_sparse_pull", "gradient_compression"}
    assert len(begin.splitlines()) < 45
    head = pydoc.plain(pydoc.render_doc(ncclkv.KVStore))[:3000]
    assert "push(" in head or "pull(" in head
