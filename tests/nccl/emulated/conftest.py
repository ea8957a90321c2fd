"""Tests of the emulation run inside of it; those of its build and its refusals run anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nccl import gpu
from tests.nccl.emulated.calls import Things, nothing_left

HERE = Path(__file__).resolve().parent
ANYWHERE = {"test_build.py"}
WHY = "not in layer 3b: python -m tests.nccl.emulated python -m pytest tests/nccl/emulated"


@pytest.fixture
def things() -> Iterator[Things]:
    with nothing_left() as made:
        yield made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if gpu.emulated():
        return
    for item in items:
        if item.path.parent == HERE and item.path.name not in ANYWHERE:
            item.add_marker(pytest.mark.skip(reason=WHY))
