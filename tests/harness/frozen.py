"""Modules hidden from the collector of garbage: they live to the end of the run.

A full collection looks through all objects that are not hidden.  With torch imported that takes
80 ms each time.
"""

from __future__ import annotations

import gc
import sys

MANY_MODULES = 100
"""Count of imported modules, such as torch's, after which the collector is relieved again."""


class Frozen:
    """Pytest plugin that hides modules and tests from the collector of garbage."""

    def __init__(self) -> None:
        self._modules = 0

    def pytest_collection_finish(self) -> None:
        self._freeze()

    def pytest_runtest_logfinish(self) -> None:
        # Some tests import a library only when they run.
        if len(sys.modules) >= self._modules + MANY_MODULES:
            self._freeze()

    def _freeze(self) -> None:
        gc.collect()
        gc.freeze()
        self._modules = len(sys.modules)
