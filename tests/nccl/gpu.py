"""The search for a GPU to run tests on."""

from __future__ import annotations

import os

import pytest


def emulated() -> bool:
    """Return whether this is layer 3b, whose device is emulated."""
    return os.environ.get("NCCLKV_EMULATED") == "1"


def busy(elements: int) -> int:
    """Return a count of elements that keeps the device busy as long as `elements` keep a GPU."""
    return elements // 1024 if emulated() else elements


def required() -> bool:
    """Return whether tests must find a GPU: a skip is then a failure."""
    return os.environ.get("NCCLKV_REQUIRE_GPU") == "1"


def need_gpu() -> None:
    """Skip the test with the reason if there is no GPU; fail if one is `required`."""
    what = missing()
    if what and required():
        pytest.fail(f"NCCLKV_REQUIRE_GPU=1, and {what}", pytrace=False)
    if what:
        pytest.skip(what)


def missing() -> str:
    """Return a sentence that names what is missing, empty if a GPU is usable.

    Tests for GPUs run on an emulated device, too, unless a GPU is `required`.
    """
    if emulated() and required():
        return "the device of layer 3b is emulated, and no GPU"
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed: pip install 'ncclkv[cuda12]'"
    if not cupy.cuda.is_available():
        return "there is no GPU here, or no driver for it"
    return ""
