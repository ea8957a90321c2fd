"""Whether there is a GPU to test on."""

from __future__ import annotations

import os

import pytest


def need_gpu() -> None:
    """Skip the test, saying why, where there is none; with ``NCCLKV_REQUIRE_GPU=1`` fail it."""
    missing = _missing()
    if missing and os.environ.get("NCCLKV_REQUIRE_GPU") == "1":
        pytest.fail(f"NCCLKV_REQUIRE_GPU=1, and {missing}")
    if missing:
        pytest.skip(missing)


def _missing() -> str:
    """What is not there, in words; empty when all is."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed: pip install 'ncclkv[cuda12]'"
    if not cupy.cuda.is_available():
        return "there is no GPU here, or no driver for it"
    return ""
