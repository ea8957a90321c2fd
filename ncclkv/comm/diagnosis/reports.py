"""Reports: the last calls and the waits of one rank, read from its page or received from it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

EVERYONE = "*"
"""The name that stands for all ranks of the store that shows a wait in another store."""

FEWER_BATCHES = (
    "kv.uneven(), and model.join() for torch, are for ranks with different numbers of batches"
)
"""Advice for a rank that has left while others go on."""


class RecordedCall(NamedTuple):
    """A call of a store.

    Attributes
    ----------
    call_index : int
        Its index among the calls of its rank, from 1.
    code, keys : int
        The verb with its priority, and the set of its keys, as `ncclkv.table.contract` encodes
        them.  All ranks must have equal ones.
    text : str
        The call and its line in the user's program.
    age : float
        Seconds since the call.
    items : str
        The items of the call's list, which the text may leave out, as `item_lists.write` writes.
    """

    call_index: int
    code: int
    keys: int
    text: str
    age: float
    items: str = ""


class OtherWait(NamedTuple):
    """A wait of the rank's thread outside this store.

    Attributes
    ----------
    age : float
        Seconds since the rank last showed the wait.
    description : str
        The collective that waits.
    names : list of str
        The awaited threads as in `Report.name`, or `EVERYONE`; incomplete where names are missing.
    store : str
        The store that waits, as `CallComparison.store`, or a key of `crossing.creations`; empty
        where it is unknown.
    call_index : int
        The index of the call that launched the awaited collective.
    """

    age: float
    description: str
    names: list[str]
    store: str = ""
    call_index: int = 0


class Wait(NamedTuple):
    """A long wait in this store.

    Attributes
    ----------
    seconds : float
        Its length when the rank last showed it.
    age : float
        Seconds since then.
    total : int
        The count of awaited ranks.
    ranks : list of int
        The lowest of them.
    description : str
        The collective that waits.
    """

    seconds: float
    age: float
    total: int
    ranks: list[int]
    description: str


class Report(NamedTuple):
    """The last calls and the waits of a rank.

    Attributes
    ----------
    name : str
        The name of the rank's thread, the same in all stores.
    label : str
        The rank, its host and its process, for messages.
    calls : list of RecordedCall
        Its last calls, the latest at the end.
    other_wait : OtherWait or None
        The wait of its thread outside this store.
    wait : Wait or None
        Its wait in this store, which may have ended in an error.
    state : str
        The state of its process that explains why others wait; empty for an ordinary one.
    made : int
        The count of its calls, read after `other_wait`.
    """

    name: str
    label: str
    calls: list[RecordedCall]
    other_wait: OtherWait | None
    wait: Wait | None = None
    state: str = ""
    made: int = 0

    def aged(self, seconds: float, max_calls: int = 1) -> Report:
        """Return the report as it reads `seconds` later, with its last calls only."""
        calls = [call._replace(age=call.age + seconds) for call in self.calls[-max_calls:]]
        other = self.other_wait
        other = None if other is None else other._replace(age=other.age + seconds)
        wait = None if self.wait is None else self.wait._replace(age=self.wait.age + seconds)
        return self._replace(calls=calls, other_wait=other, wait=wait)


def first_difference(
    mine: Sequence[RecordedCall], theirs: Sequence[RecordedCall]
) -> tuple[RecordedCall, RecordedCall] | None:
    """Return the first calls of one index that differ; None where all indices in both agree."""
    by_index = {call.call_index: call for call in theirs}
    for call in mine:
        other = by_index.get(call.call_index)
        if other is not None and (other.code, other.keys) != (call.code, call.keys):
            return call, other
    return None


def describe_last_call(report: Report) -> str:
    """Describe the last call of a report that has calls."""
    call = report.calls[-1]
    return f"{report.label} last called {call.text}, {call.age:.1f} s ago"


def format_ranks(ranks: Collection[int], max_shown: int | None = None) -> str:
    """List ranks, the lowest first; those beyond `max_shown` are counted.

    Examples
    --------
    >>> format_ranks({3, 1}), format_ranks([2]), format_ranks(range(6), 4)
    ('ranks 1, 3', 'rank 2', 'ranks 0, 1, 2, 3 and 2 more ranks')
    """
    shown = sorted(ranks)[:max_shown]
    more = f" and {len(ranks) - len(shown)} more ranks" if len(shown) < len(ranks) else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, shown))}{more}"
