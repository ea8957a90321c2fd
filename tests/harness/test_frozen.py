"""Modules that tests import are hidden from the collector of garbage."""

from __future__ import annotations

import gc
import sys
from types import ModuleType

import pytest

from tests.harness.frozen import MANY_MODULES, Frozen


def test_many_modules_that_a_test_imports_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = Frozen()
    frozen.pytest_collection_finish()
    hidden = gc.get_freeze_count()
    names = [f"imported_{number}" for number in range(MANY_MODULES)]
    for name in names[1:]:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    frozen.pytest_runtest_logfinish()
    assert gc.get_freeze_count() <= hidden, "few modules are not worth a full collection"
    monkeypatch.setitem(sys.modules, names[0], ModuleType(names[0]))
    frozen.pytest_runtest_logfinish()
    assert gc.get_freeze_count() >= hidden + MANY_MODULES
