"""The public names of the package, and that all of them are documented."""

from __future__ import annotations

import inspect

import pytest

import ncclkv

PUBLIC = sorted(ncclkv.__all__)


def test_all_is_what_is_public():
    """Modules apart, which are public only when they are listed."""
    names = {name for name in vars(ncclkv) if not name.startswith("_")}
    listed = set(ncclkv.__all__)
    assert len(listed) == len(ncclkv.__all__), "a name is listed twice"
    assert listed <= names
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
