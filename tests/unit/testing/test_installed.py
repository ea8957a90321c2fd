"""All that a world replaces is there again after it, however it ends."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

import ncclkv
from ncclkv import concurrency
from ncclkv.comm.host import communicator
from ncclkv.comm.messages import channel
from ncclkv.testing import NoProgress, Seeded, run_ranks
from ncclkv.testing.habits import CONSTANTS, OWNERS, Habits, draw_habits

NAMES = [
    each
    for each in vars(concurrency)
    if not each.startswith("_") and each not in ("annotations", "threading")
]


@contextmanager
def unchanged() -> Iterator[None]:
    """Compare everything that a world may replace before and after a block."""

    def state() -> dict[str, Any]:
        steps = {
            f"{each.function.__module__}.{each.function.__qualname__}": each.function
            for each in concurrency.shared_steps
        }
        found = {name: _find(name) for name in steps}
        assert found == steps
        return {
            **{name: getattr(concurrency, name) for name in NAMES},
            **{name: getattr(sys.modules[module], name) for name, module in OWNERS.items()},
            "imported": imported(),
            "variables": dict(os.environ),
            "collects": gc.isenabled(),
        }

    before = state()
    yield
    assert state() == before


def imported() -> Any:
    """Return a constant of `channel` as another module has it."""
    return vars(communicator)["SHORT_BYTES"]


def _find(name: str) -> Any:
    """Return the function of a dotted name."""
    parts = name.split(".")
    module = next(
        sys.modules[".".join(parts[:stop])]
        for stop in range(len(parts), 0, -1)
        if ".".join(parts[:stop]) in sys.modules
    )
    found: Any = module
    for part in parts[len(module.__name__.split(".")) :]:
        found = vars(found)[part]
    return found


def habits(**changed: Any) -> Habits:
    """Return habits with some that are chosen here."""
    drawn = vars(draw_habits(Random(0)))
    return Habits(**{**drawn, "constants": {}, "variables": {}, **changed})


def test_all_is_as_before_after_a_run() -> None:
    with unchanged():
        for seed in range(10):
            run_ranks(2, lambda: ncclkv.create("dist").close(), world=Seeded(seed))


def test_all_is_as_before_after_an_error() -> None:
    def fail() -> None:
        raise ValueError("mine")

    def wait() -> None:
        concurrency.Condition().wait_for(lambda: False)

    with unchanged():
        with pytest.raises(ValueError, match="mine"):
            run_ranks(2, fail, world=Seeded(0))
        with pytest.raises(NoProgress):
            run_ranks(2, wait, world=Seeded(0))


def test_a_constant_is_set_in_each_module_that_imports_it() -> None:
    chosen = habits(constants={"SHORT_BYTES": 64})
    assert channel.SHORT_BYTES == imported() == 16 * 1024
    values = run_ranks(
        1,
        lambda: (channel.SHORT_BYTES, imported()),
        world=Seeded(0, habits=chosen),
    )
    assert values == [(64, 64)]


def test_variables_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = habits(variables={"NCCLKV_NODE_MEMORY": "halves", "NCCLKV_RANKS_PER_NODE": "1"})
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", "messages")
    monkeypatch.delenv("NCCLKV_RANKS_PER_NODE", raising=False)

    def body() -> tuple[str, str]:
        return os.environ["NCCLKV_NODE_MEMORY"], os.environ["NCCLKV_RANKS_PER_NODE"]

    assert run_ranks(1, body, world=Seeded(0, habits=chosen)) == [("messages", "1")]


def test_every_constant_exists_and_is_drawn() -> None:
    drawn: dict[str, set[str]] = {}
    for seed in range(200):
        for name, value in draw_habits(Random(seed)).constants.items():
            drawn.setdefault(name, set()).add(str(value))
    assert drawn.keys() == OWNERS.keys() == {name for each in CONSTANTS for v in each for name in v}
    for name, module in OWNERS.items():
        assert hasattr(sys.modules[module], name), (module, name)
