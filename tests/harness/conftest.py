"""Settings of the tests of the harness: the limits under test are not stretched."""

from __future__ import annotations

import pytest

from tests.harness.slow import VARIABLE


@pytest.fixture(autouse=True)
def limits_as_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the factor, for the processes that a test starts, too."""
    monkeypatch.delenv(VARIABLE, raising=False)
