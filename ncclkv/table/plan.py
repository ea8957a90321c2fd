"""What a flush will launch, and in which order: from the table and the calls alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from ncclkv.table.bucket import Bucket, Range
from ncclkv.table.registry import Key


@dataclass(frozen=True)
class Launch:
    """One collective: a range of a bucket, and the keys it is for."""

    bucket: Bucket
    span: Range
    label: str


def launches(bucket: Bucket, keys: Set[Key]) -> list[Launch]:
    """The collectives that reduce `keys` of a bucket and touch no other key."""
    if len(keys) == len(bucket.entries):
        spans = [(0, bucket.count)] if bucket.count else []
    else:
        spans = bucket.runs(keys)
    return [Launch(bucket, span, label(bucket, span)) for span in spans]


def launch_order(priorities: Mapping[int, int]) -> list[int]:
    """Bucket indices by priority, the highest first; ties in registry order."""
    return sorted(priorities, key=lambda index: (-priorities[index], index))


def label(bucket: Bucket, span: Range) -> str:
    """The keys of a range, for messages."""
    lows = bucket.lows
    first, last = bisect_left(lows, span[0]), bisect_left(lows, span[1]) - 1
    # An empty key lies where the one behind it does, and may begin where the span ends.
    last = max(first, last)
    names = [repr(bucket.entries[number].key) for number in (first, last)]
    if first == last:
        return f"key {names[0]}"
    return f"keys {names[0]} to {names[1]} of bucket {bucket.index}"


def explain(buckets: Iterable[Bucket], waiting: Iterable[Key], owner: str) -> str:
    """The layout as a table, a line a bucket, in the order of launching."""
    lines = ["bucket  dtype       op      bytes  keys  owner       holds"]
    for bucket in buckets:
        keys = [repr(entry.key) for entry in bucket.entries]
        holds = keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}"
        lines.append(
            f"{bucket.index:6}  {bucket.dtype!s:10}  {bucket.op:3}  {bucket.nbytes:8}  "
            f"{len(keys):4}  {owner:10}  {holds}"
        )
    unplaced = [repr(key) for key in waiting]
    if unplaced:
        lines.append(f"not placed until the first push, grad_view or value: {', '.join(unplaced)}")
    return "\n".join(lines)
