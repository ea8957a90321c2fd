"""Whether there is a GPU to test on."""

from __future__ import annotations

import os

import pytest


def emulated() -> bool:
    """Tell whether this is layer 3b, whose device is no GPU."""
    return os.environ.get("NCCLKV_EMULATED") == "1"


def busy(elements: int) -> int:
    """Return how many elements keep the device as busy as so many keep a GPU."""
    return elements // 1024 if emulated() else elements


def required() -> bool:
    """Whether tests that need a GPU must run: where this is so, a skip is a failure."""
    return os.environ.get("NCCLKV_REQUIRE_GPU") == "1"


def need_gpu() -> None:
    """Skip the test, saying why, where there is none; or fail, if that is `required`."""
    what = missing()
    if what and required():
        pytest.fail(f"NCCLKV_REQUIRE_GPU=1, and {what}", pytrace=False)
    if what:
        pytest.skip(what)


def missing() -> str:
    """What is not there, in words; empty when all is.

    Tests that need a GPU run on an emulated device too, unless a GPU is `required`.
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
