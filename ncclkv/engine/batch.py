"""What one call brings into buckets, or takes out of them: sorted once, used as often as it comes.

A batch names arrays by their numbers in a list, and holds none, so that it serves for every list of
arrays of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ncclkv.arrays.memory import identity, is_on_host
from ncclkv.engine.bucket_state import Array, BucketState, Slot
from ncclkv.kernels.base import Kernels
from ncclkv.table.registry import Key

Numbers = Sequence[int]
"""Places of arrays in a list; a range when they follow one another."""


@dataclass(eq=False)
class Targets:
    """Where the arrays of a load go: flat places in a bucket, in the order of the load's numbers.

    Attributes
    ----------
    single : list of ndarray
        Of keys with one array each.
    several : list of ndarray
        Of keys with several.
    table : Any
        What the kernels keep from call to call.
    """

    single: list[Array] = field(default_factory=list)
    several: list[Array] = field(default_factory=list)
    table: Any = None


@dataclass(eq=False)
class BucketPush:
    """What a push brings into one bucket.

    Attributes
    ----------
    state : BucketState
    keys : set of keys
    numbers : list of int
        The arrays of keys with one each.
    several : list of (list of int, str)
        The arrays of each key that has several, and its op.
    gradients, weights : Targets
        Where all these may go.
    held : list of Slot
        Keys whose array is their own gradient, where it lies already.
    """

    state: BucketState
    keys: set[Key] = field(default_factory=set)
    numbers: Numbers = range(0)
    several: list[tuple[Numbers, str]] = field(default_factory=list)
    gradients: Targets = field(default_factory=Targets)
    weights: Targets = field(default_factory=Targets)
    held: list[Slot] = field(default_factory=list)

    def add(self, slot: Slot, numbers: Numbers, *, held: bool) -> bool:
        """Include a key; tell whether it has one array, whose number `numbers` is to include."""
        self.keys.add(slot.entry.key)
        if held:
            self.held.append(slot)
            return False
        single = len(numbers) == 1
        if not single:
            self.several.append((numbers, slot.entry.spec.op))
        for targets, place in ((self.gradients, slot.gradient), (self.weights, slot.weight)):
            (targets.single if single else targets.several).append(place)
        return single

    def copy(self, row: Sequence[Array], targets: Targets, kernels: Kernels) -> None:
        """Reduce this rank's arrays of each key into its place."""
        if self.several:
            for (numbers, op), place in zip(self.several, targets.several, strict=True):
                kernels.combine(chosen(row, numbers), place, op)
        if self.numbers:
            values = chosen(row, self.numbers)
            targets.table = kernels.pack_all(values, targets.single, targets.table)


@dataclass(eq=False)
class Push:
    """A push.

    Attributes
    ----------
    numbers : dict by key
        Its keys in the order given, and the numbers of their arrays.
    loads : list of Load
        In the order of buckets.
    several : bool
        Whether a key has several arrays.
    whole : bool
        Whether it brings all that belongs into its buckets, from elsewhere.
    number : int or None
        The number of its keys, once somebody has made it.
    """

    numbers: dict[Key, Numbers]
    loads: list[BucketPush]
    number: int | None = None

    def __post_init__(self) -> None:
        self.several = any(load.several for load in self.loads)
        self.whole = not any(
            load.held or len(load.keys) < len(load.state.layout.entries) for load in self.loads
        )


@dataclass(eq=False)
class BucketPull:
    """What a pull takes out of one bucket, or of the values that have no place yet."""

    sources: list[Array]
    numbers: Numbers
    table: Any = None


@dataclass(eq=False)
class Pull:
    """A pull.

    Attributes
    ----------
    keys : list of keys
        Of each array.
    states : list of BucketState
        What it flushes.
    takes : list of Take
    to_host : bool
        Whether an array is in host memory.
    number : int or None
        As `Push.number`.
    tensors : sequence of torch.Tensor
        Those that are written to; only of a call that is not kept.
    """

    keys: list[Key]
    states: list[BucketState]
    takes: list[BucketPull]
    to_host: bool
    number: int | None = None
    tensors: Sequence[Any] = ()


def chosen(arrays: Sequence[Array], numbers: Numbers) -> Sequence[Array]:
    """The arrays of these numbers."""
    if isinstance(numbers, range):
        whole = len(numbers) == len(arrays)
        return arrays if whole else arrays[numbers.start : numbers.stop]
    return [arrays[number] for number in numbers]


def _in_a_row(numbers: list[int]) -> Numbers:
    """Numbers that follow one another as a range: `chosen` then need not look at each."""
    block = range(numbers[0], numbers[0] + len(numbers)) if numbers else range(0)
    return block if numbers == list(block) else numbers


def push_of(
    values: Mapping[Key, Sequence[Array]],
    place: Callable[[Key], Slot],
    safe: Callable[[Array], Array],
) -> tuple[Push, list[Array]]:
    """Sort a push of several arrays a key; return them in a row, too, made `safe`."""
    loads: dict[int, BucketPush] = {}
    singles: dict[int, list[int]] = {}
    of_key: dict[Key, Numbers] = {}
    row: list[Array] = []
    for key, arrays in values.items():
        slot = place(key)
        index = slot.state.layout.index
        load = loads.setdefault(index, BucketPush(slot.state))
        numbers = of_key[key] = range(len(row), len(row) + len(arrays))
        held = len(arrays) == 1 and slot.holds(arrays[0])
        if load.add(slot, numbers, held=held):
            singles.setdefault(index, []).append(len(row))
        row += arrays if held else map(safe, arrays)
    for index, found in singles.items():
        loads[index].numbers = _in_a_row(found)
    return Push(of_key, [loads[index] for index in sorted(loads)]), row


def pull_of(
    reads: Sequence[tuple[Key, Array]],
    source: Callable[[Key], tuple[BucketState | None, Array]],
) -> tuple[Pull, list[Array]]:
    """Sort what is to be read; return the arrays to be written in a row, too.

    One that stands for several keys gets the last one's value.
    """
    last = {identity(out): number for number, (_, out) in enumerate(reads)}
    sources = [source(key) for key, _ in reads]
    states = {state.layout.index: state for state, _ in sources if state is not None}
    taken: dict[int, list[int]] = {}
    for number in last.values():
        state, _ = sources[number]
        taken.setdefault(-1 if state is None else state.layout.index, []).append(number)
    takes = [
        BucketPull([sources[number][1] for number in numbers], _in_a_row(numbers))
        for numbers in taken.values()
    ]
    row = [out for _, out in reads]
    flushed = [states[index] for index in sorted(states)]
    return Pull([key for key, _ in reads], flushed, takes, any(map(is_on_host, row))), row
