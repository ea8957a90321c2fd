"""Warnings are at the program's line, whatever functions of the package lie between."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import ncclkv
from ncclkv import optimizer

WORDS = "independent stores|replaces .* under the name 'twice'|rename the class to keep both"


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a store of this process in rank 0 of several."""
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("PMI_RANK", "0")
    ncclkv.create("local").close()


def store_again(_: Any) -> None:
    """Register two classes of stores under a name."""
    for _ in range(2):
        made = type("Twice", (ncclkv.KVStoreBase,), {})
        ncclkv.KVStoreBase.register(made)
    del ncclkv.KVStoreBase.kv_registry["twice"]


def optimizer_again(_: Any) -> None:
    """Register two classes of optimizers under a name."""
    for module in "first", "second":
        optimizer.register(type("Twice", (optimizer.SGD,), {"__module__": module}))


@pytest.mark.parametrize("call", [alone, store_again, optimizer_again])
def test_a_warning_is_at_the_line_of_the_program(
    call: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(UserWarning, match=WORDS) as caught:
        call(monkeypatch)
    assert [warning.filename for warning in caught] == [__file__]


def test_a_warning_is_shown_once_for_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            alone(monkeypatch)
    assert len(caught) == 1
