"""Sizes with their units."""

from __future__ import annotations

import pytest

from bench.report.units import size_text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (8, "8 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (455_884, "445.2 KiB"),
        (3 << 20, "3 MiB"),
        (97.5 * 2**20, "97.5 MiB"),
        (1278.5 * 2**20, "1278.5 MiB"),
    ],
)
def test_sizes(nbytes, text):
    assert size_text(nbytes) == text
