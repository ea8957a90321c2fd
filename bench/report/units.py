"""Sizes in bytes, KiB and MiB, as tables, sentences and pictures show them."""

from __future__ import annotations

from bench.options import KIB, MIB


def size_text(nbytes: float) -> str:
    """Return a size with its unit.

    Examples
    --------
    >>> size_text(8), size_text(4096), size_text(3 << 20), size_text(97.5 * 2**20)
    ('8 B', '4 KiB', '3 MiB', '97.5 MiB')
    """
    unit, name = (1, "B") if nbytes < KIB else (KIB, "KiB") if nbytes < MIB else (MIB, "MiB")
    return f"{round(nbytes / unit, 1):g} {name}"
