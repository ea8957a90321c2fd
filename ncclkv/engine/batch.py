"""What one call brings into buckets, or takes out of them: sorted once, used as often as it comes.

A batch names arrays by their numbers in a list, and holds none, so that it serves for every list of
arrays of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ncclkv.arrays.memory import identity, is_on_host
from ncclkv.engine.state import Array, BucketState, Slot
from ncclkv.table.registry import Key


@dataclass(eq=False)
class Load:
    """What a push brings into one bucket.

    Attributes
    ----------
    state : BucketState
    keys : set of keys
    slots, numbers : list
        Keys with one array each, and its number.
    several : list of (Slot, list of int)
        Keys with several, which are combined.
    held : list of Slot
        Keys whose array is their own gradient, where it lies already.
    table : Any
        What the kernels keep from call to call.
    """

    state: BucketState
    keys: set[Key] = field(default_factory=set)
    slots: list[Slot] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    several: list[tuple[Slot, list[int]]] = field(default_factory=list)
    held: list[Slot] = field(default_factory=list)
    table: Any = None

    def add(self, slot: Slot, numbers: list[int], *, held: bool) -> None:
        """Include a key."""
        self.keys.add(slot.entry.key)
        if held:
            self.held.append(slot)
        elif len(numbers) > 1:
            self.several.append((slot, numbers))
        else:
            self.slots.append(slot)
            self.numbers += numbers


@dataclass(eq=False)
class Push:
    """A push: its keys in the order given, and its loads in the order of buckets."""

    keys: list[Key]
    loads: list[Load]


@dataclass(eq=False)
class Take:
    """What a pull takes out of one bucket, or of the values that have no place yet (no `state`)."""

    state: BucketState | None
    sources: list[Array] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    table: Any = None


@dataclass(eq=False)
class Pull:
    """A pull: the buckets it flushes, what it takes of each, and whether into host memory."""

    states: list[BucketState]
    takes: list[Take]
    to_host: bool


def chosen(arrays: Sequence[Array], numbers: list[int]) -> Sequence[Array]:
    """The arrays of these numbers."""
    return [arrays[number] for number in numbers]


def push_of(
    values: Mapping[Key, Sequence[Array]],
    place: Callable[[Key], Slot],
    safe: Callable[[Array], Array],
) -> tuple[Push, list[Array]]:
    """Sort a push of several arrays a key; return them in a row, too, made `safe`."""
    loads: dict[int, Load] = {}
    row: list[Array] = []
    for key, arrays in values.items():
        slot = place(key)
        held = len(arrays) == 1 and slot.holds(arrays[0])
        load = loads.setdefault(slot.state.layout.index, Load(slot.state))
        load.add(slot, list(range(len(row), len(row) + len(arrays))), held=held)
        row += arrays if held else map(safe, arrays)
    return Push(list(values), [loads[index] for index in sorted(loads)]), row


def pull_of(
    reads: Sequence[tuple[Key, Array]],
    source: Callable[[Key], tuple[BucketState | None, Array]],
) -> tuple[Pull, list[Array]]:
    """Sort what is to be read; return the arrays to be written in a row, too.

    One that stands for several keys gets the last one's value.
    """
    last = {identity(out): number for number, (_, out) in enumerate(reads)}
    sources = [source(key) for key, _ in reads]
    takes: dict[int, Take] = {}
    for number in last.values():
        state, value = sources[number]
        take = takes.setdefault(-1 if state is None else state.layout.index, Take(state))
        take.sources.append(value)
        take.numbers.append(number)
    states = {state.layout.index: state for state, _ in sources if state is not None}
    row = [out for _, out in reads]
    to_host = any(map(is_on_host, row))
    return Pull([states[index] for index in sorted(states)], list(takes.values()), to_host), row
