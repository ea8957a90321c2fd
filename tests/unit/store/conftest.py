"""Fixtures of the store's unit tests."""

from __future__ import annotations

from typing import Any

import pytest

from ncclkv.store import check


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
