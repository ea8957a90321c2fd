"""Settings of tests inside the emulation; those of its build and its refusals run anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nccl import gpu
from tests.nccl.emulated import control
from tests.nccl.emulated.calls import Things, code, made, nothing_left, ok
from tests.nccl.emulated.launched import WORDS, image, load
from tests.nccl.emulated.sides import Memory

HERE = Path(__file__).resolve().parent
ANYWHERE = {"test_build.py"}
WHY = "not in layer 3b: python -m tests.nccl.emulated python -m pytest tests/nccl/emulated"


@pytest.fixture
def things() -> Iterator[Things]:
    with nothing_left() as things:
        yield things


@pytest.fixture
def all_is_freed() -> Iterator[None]:
    before = control.counts()
    yield
    ok("cudaDeviceSynchronize")
    code("cudaGetLastError")
    after = control.counts()
    kinds = [kind for kind in before if "block" in kind or "bytes" in kind]
    assert [after[kind] for kind in kinds] == [before[kind] for kind in kinds]


@pytest.fixture
def module() -> Iterator[int]:
    loaded = load(image())
    yield loaded
    code("cuModuleUnload", loaded)


@pytest.fixture
def out() -> Iterator[int]:
    pointer = made("cudaMalloc", 4 * WORDS)
    ok("cudaMemset", pointer, 0, 4 * WORDS)
    ok("cudaDeviceSynchronize")  # no other stream waits for the default one by itself
    yield pointer
    ok("cudaFree", pointer)


@pytest.fixture
def memory() -> Iterator[Memory]:
    made_here = Memory()
    yield made_here
    ok("cudaDeviceSynchronize")
    code("cudaGetLastError")
    made_here.free()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if gpu.emulated():
        return
    for item in items:
        if item.path.parent == HERE and item.path.name not in ANYWHERE:
            item.add_marker(pytest.mark.skip(reason=WHY))
