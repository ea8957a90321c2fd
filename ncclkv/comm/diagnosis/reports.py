"""A rank's last calls and its waits, as read from its page or received from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class RecordedCall(NamedTuple):
    """A call of a store.

    Attributes
    ----------
    number : int
        Among those of its rank, from 1.
    what, keys : int
        What ranks must have alike: the verb with its priority, and the keys, as
        `ncclkv.table.contract` makes numbers of them.
    text : str
        The same in words, and where it was called.
    age : float
        Seconds since then.
    """

    number: int
    what: int
    keys: int
    text: str
    age: float


class OtherWait(NamedTuple):
    """A wait in another store.

    Attributes
    ----------
    age : float
        Seconds since it was last seen.
    words : str
        What waits there.
    names : list of str
        Whom it waits for, as far as is known; as `Report.name`.
    """

    age: float
    words: str
    names: list[str]


class Wait(NamedTuple):
    """A long wait.

    Attributes
    ----------
    seconds : float
        How long it had lasted when it was last seen.
    age : float
        Seconds since then.
    total : int
        How many ranks it waits for.
    ranks : list of int
        The lowest of them.
    words : str
        What waits.
    """

    seconds: float
    age: float
    total: int
    ranks: list[int]
    words: str


class Report(NamedTuple):
    """Report of a rank about itself.

    Attributes
    ----------
    name : str
        Of its thread, the same in all stores.
    who : str
        The same for readers.
    calls : list of Call
        Its last, the latest at the end.
    elsewhere : Elsewhere or None
        Where the thread waits, if not in this store.
    wait : Wait or None
        The wait in this store that the rank is in, or that it gave up.
    state : str
        Why others wait for its process, as the system describes it; empty where nothing is known.
    """

    name: str
    who: str
    calls: list[RecordedCall]
    elsewhere: OtherWait | None
    wait: Wait | None = None
    state: str = ""

    def later(self, seconds: float, most: int = 1) -> Report:
        """The same so much later, of the last calls."""
        calls = [call._replace(age=call.age + seconds) for call in self.calls[-most:]]
        there = self.elsewhere
        waits = None if there is None else there._replace(age=there.age + seconds)
        wait = None if self.wait is None else self.wait._replace(age=self.wait.age + seconds)
        return self._replace(calls=calls, elsewhere=waits, wait=wait)


def difference(
    mine: Sequence[RecordedCall], theirs: Sequence[RecordedCall]
) -> tuple[RecordedCall, RecordedCall] | None:
    """The first calls of the same number that are not alike, as far as both are known."""
    known = {call.number: call for call in theirs}
    for call in mine:
        other = known.get(call.number)
        if other is not None and (other.what, other.keys) != (call.what, call.keys):
            return call, other
    return None


def last(report: Report) -> str:
    """A rank's last call, of which there must be one, in words."""
    call = report.calls[-1]
    return f"{report.who} last called {call.text}, {call.age:.1f} s ago"


def plain(report: Report) -> tuple[object, ...]:
    """A report without the classes of this package."""
    elsewhere = None if report.elsewhere is None else tuple(report.elsewhere)
    wait = None if report.wait is None else tuple(report.wait)
    calls = [tuple(call) for call in report.calls]
    return report.name, report.who, calls, elsewhere, wait, report.state


def of_plain(told: tuple[Any, ...]) -> Report:
    """Return the report that `plain` was made of."""
    name, who, calls, elsewhere, wait, state = told
    return Report(
        name,
        who,
        [RecordedCall(*call) for call in calls],
        None if elsewhere is None else OtherWait(*elsewhere),
        None if wait is None else Wait(*wait),
        state,
    )
