"""Whether there is a GPU to test on."""

from __future__ import annotations

import os

import pytest


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
    """What is not there, in words; empty when all is."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed: pip install 'ncclkv[cuda12]'"
    if not cupy.cuda.is_available():
        return "there is no GPU here, or no driver for it"
    return ""
