"""Settings of the tests in one process without MPI, whose ranks are threads."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator

import pytest

from ncclkv.kernels.host import compiled


@pytest.fixture(autouse=True, scope="session")
def _no_mpi():
    """Fail a test that starts MPI: the tests would then depend on a launcher."""
    before = "mpi4py.MPI" in sys.modules  # true when tests/ranks is collected in the same run
    yield
    started = not before and "mpi4py.MPI" in sys.modules
    assert not started, "a test in tests/unit has started MPI"


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Disable the garbage collector, which rarely runs with few large objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use kernels in C, with non-temporal stores at all lengths."""
    if not compiled.BUILT:
        pytest.skip("the kernels in C are not built: there was no compiler, or no Python.h")
    monkeypatch.setattr(compiled, "active", True)
    monkeypatch.setattr(compiled, "STREAM_BYTES", 0)
    monkeypatch.setattr(compiled, "STREAM_PART_BYTES", 0)


@pytest.fixture
def clock_set_in_c(in_c: None) -> Iterator[Callable[[int | None], None]]:
    """Return `compiled.set_clock`; the real clock is restored at the end."""
    yield compiled.set_clock
    compiled.set_clock(None)


@pytest.fixture(params=["NumPy", "C"])
def in_numpy_and_c(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with NumPy alone, and with the kernels in C."""
    if request.param == "C":
        request.getfixturevalue("in_c")
    else:
        monkeypatch.setattr(compiled, "active", False)
