"""Fixtures of the store's unit tests."""

from __future__ import annotations

from typing import Any

import pytest

from ncclkv.checkpoint import directory
from ncclkv.store import check, saving
from tests.unit.store.thread_ranks import on_rank


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the verb of each call whose arrays are checked one by one."""
    found: list[str] = []
    for name in ("values", "outs"):
        function = getattr(check, name)

        def counting(verb: str, *given: Any, function: Any = function) -> Any:
            found.append(verb)
            return function(verb, *given)

        monkeypatch.setattr(check, name, counting)
    return found


@pytest.fixture(params=["one disk", "two disks"])
def disks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let all ranks see the leader's directory, or all but rank 1."""
    if request.param == "two disks":
        seen = directory.has_mark
        monkeypatch.setattr(saving, "has_mark", lambda *given: on_rank() != 1 and seen(*given))
    found: str = request.param
    return found
