"""Ranks in words."""

from __future__ import annotations

from collections.abc import Collection


def format_ranks(ranks: Collection[int], most: int | None = None) -> str:
    """Ranks in a row, the lowest first; of more than `most` the rest are counted.

    Examples
    --------
    >>> named({3, 1}), named([2]), named(range(6), 4)
    ('ranks 1, 3', 'rank 2', 'ranks 0, 1, 2, 3 and 2 more ranks')
    """
    shown = sorted(ranks)[:most]
    more = f" and {len(ranks) - len(shown)} more ranks" if len(shown) < len(ranks) else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, shown))}{more}"
