"""Settings of the tests with MXNet, which need an environment of its own: ``launch/mxnet.sh``."""

from __future__ import annotations

import contextlib
import warnings

import pytest

with warnings.catch_warnings(), contextlib.suppress(ImportError):
    warnings.simplefilter("ignore")  # MXNet 1.9 uses names that NumPy has deprecated
    import mxnet  # noqa: F401


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning:mxnet")
