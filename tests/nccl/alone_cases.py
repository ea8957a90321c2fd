"""The cases of compression for a store of one process, of which each array of a key sends."""

from __future__ import annotations

import pytest

from tests.conformance import CASES

COMPRESSED = [
    pytest.param(case, id=case.name)
    for case in CASES
    if "compress" in case.name and case.fits(1) and not case.in_host_memory
]
