"""A program as data, equal on all ranks, whose `repr` is its source.

Keys of a step that have no value are left out on every rank, and a step without keys is skipped.
So a program stays valid when any of its steps is removed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

Key = int | str
"""A key; all keys of a store are of one kind."""

Keys = tuple[Key, ...]

Pairs = tuple[tuple[int, Key], ...]
"""Ranks and keys."""


class Plain:
    """Base of all parts of a program: `repr` leaves out what is as by default."""

    def __repr__(self) -> str:
        given = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)  # type: ignore[arg-type]  # every part is a dataclass
            if getattr(self, each.name) != each.default
        ]
        return f"{type(self).__name__}({', '.join(given)})"


@dataclass(frozen=True, repr=False)
class KeyPlan(Plain):
    """A key, which `init` gives zeros."""

    key: Key
    shape: tuple[int, ...] = (3,)
    dtype: str = "f8"
    op: str = "sum"


@dataclass(frozen=True, repr=False)
class Sgd(Plain):
    """Hyperparameters of SGD.

    Attributes
    ----------
    halved_after : int
        Count of updates after which a schedule halves the learning rate; 0: no schedule.
    """

    learning_rate: float = 0.5
    momentum: float = 0.0
    wd: float = 0.0
    halved_after: int = 0


@dataclass(frozen=True, repr=False)
class Other(Plain):
    """Another optimizer by its name, which the same optimizer of a store of one rank models."""

    name: str
    learning_rate: float = 0.125


@dataclass(frozen=True, repr=False)
class StorePlan(Plain):
    """Options of a store, and the keys that it has from the beginning."""

    keys: tuple[KeyPlan, ...]
    optimizer: Sgd | Other | None = None
    adds: bool = False  # a function as updater, which adds the sum
    update_on: str = "every_rank"
    root: int = 0
    bucket_bytes: int = 25 << 20
    missing: str = "error"
    nonfinite: str = "ignore"
    verify_every: int = 0
    timeout: float | None = None
    compression: str | None = None  # a name in `tests.world.coded.CODECS`


@dataclass(frozen=True, repr=False)
class Step(Plain):
    """Base of all steps."""


@dataclass(frozen=True, repr=False)
class Busy(Step):
    """A rank computes, and makes no call."""

    rank: int
    seconds: float


@dataclass(frozen=True, repr=False)
class Raise(Step):
    """The program raises `OnPurpose`."""


@dataclass(frozen=True, repr=False)
class Return(Step):
    """The program ends without `close`."""


@dataclass(frozen=True, repr=False)
class Only(Step):
    """A step that some ranks alone make."""

    ranks: tuple[int, ...]
    step: Step


@dataclass(frozen=True, repr=False)
class Call(Step):
    """A step of one store."""

    store: int


@dataclass(frozen=True, repr=False)
class ByThread(Step):
    """A call that a new thread makes for some ranks, which wait for its end."""

    ranks: tuple[int, ...]
    call: Call


@dataclass(frozen=True, repr=False)
class Create(Call):
    """Close the store if it is open, and create it anew, perhaps with another plan."""

    plan: StorePlan | None = None


@dataclass(frozen=True, repr=False)
class Init(Call):
    """Further keys."""

    keys: tuple[KeyPlan, ...]


@dataclass(frozen=True, repr=False)
class Push(Call):
    """Each rank pushes the keys, in one call or in one for each key.

    Attributes
    ----------
    layout : str
        One of `layouts.LAYOUTS`, in this step and in others; or ``views``: of the gradients.
    rate : float or None
        The learning rate that is set once the pushes have returned, before a block ends.
    repeated : bool
        Whether a call has each key twice, if there are two arrays.
    without : tuple of (int, key)
        Ranks that do not push a key, where the store takes that.
    """

    keys: Keys
    without: Pairs = ()
    single: bool = False
    arrays: int = 1
    priority: int = 0
    layout: str = "plain"
    rate: float | None = None
    repeated: bool = False


@dataclass(frozen=True, repr=False)
class PushNonFinite(Call):
    """A rank pushes NaN, where the store refuses or skips NaN."""

    keys: Keys
    rank: int


@dataclass(frozen=True, repr=False)
class Pull(Call):
    """Pull keys, into arrays of the program, perhaps of another dtype, or into new ones.

    Attributes
    ----------
    twice : str
        ``keys``: a call has each key twice; ``outs``: each key has two arrays.
    """

    keys: Keys
    out: bool = False
    layout: str = "plain"
    cast: bool = False
    twice: str = ""


@dataclass(frozen=True, repr=False)
class Look(Call):
    """Wait for keys, then look at them on some ranks alone, by `value` or by a local pull."""

    keys: Keys
    ranks: tuple[int, ...]
    pulls: bool = False


@dataclass(frozen=True, repr=False)
class PushPull(Call):
    keys: Keys
    out: bool = True
    priority: int = 0
    layout: str = "plain"
    cast: bool = False


@dataclass(frozen=True, repr=False)
class Group(Call):
    """A group: pushes, then pulls.

    Attributes
    ----------
    fails : tuple of int
        Ranks whose program raises `OnPurpose` at the end of the block.
    caught : bool
        Whether the program then goes on; the pushes are dropped.
    """

    pushes: Keys
    pulls: Keys
    fails: tuple[int, ...] = ()
    caught: bool = False
    layout: str = "plain"
    rate: float | None = None


@dataclass(frozen=True, repr=False)
class Overlap(Call):
    """An overlap block.

    Attributes
    ----------
    turn : int
        Each rank begins so many keys after the rank before it.
    threads : tuple of int
        Ranks whose pushes are made by another thread.
    inside : int or None
        A store that makes an allreduce inside the block.
    forgets : tuple of int
        Ranks that push no key, although the block does not take that.
    fails : tuple of int
        Ranks whose program raises `OnPurpose` at the end of the block.
    """

    keys: Keys
    without: Pairs = ()
    zeros: bool = False
    turn: int = 0
    threads: tuple[int, ...] = ()
    inside: int | None = None
    forgets: tuple[int, ...] = ()
    fails: tuple[int, ...] = ()
    layout: str = "plain"
    rate: float | None = None


@dataclass(frozen=True, repr=False)
class Uneven(Call):
    """An uneven block, in which each rank has its own count of batches.

    Attributes
    ----------
    fails : tuple of int
        Ranks whose program raises `OnPurpose` at the end of the block.
    block : str
        ``group`` or ``overlap``: the block in which a batch is pushed, if in one.
    """

    keys: Keys
    batches: tuple[int, ...]
    pulls: bool = False
    fails: tuple[int, ...] = ()
    block: str = ""


@dataclass(frozen=True, repr=False)
class Reset(Call):
    keys: Keys
    layout: str = "plain"


@dataclass(frozen=True, repr=False)
class Broadcast(Call):
    keys: Keys
    layout: str = "plain"


@dataclass(frozen=True, repr=False)
class Wait(Call):
    """Wait for keys, or for all."""

    keys: Keys = ()


@dataclass(frozen=True, repr=False)
class Barrier(Call):
    pass


@dataclass(frozen=True, repr=False)
class AllReduce(Call):
    """Reduce an array without a key, into itself or a new one."""

    size: int = 1
    dtype: str = "f8"
    op: str = "sum"
    layout: str = "plain"
    out: bool = False


@dataclass(frozen=True, repr=False)
class AllGather(Call):
    size: int = 1


@dataclass(frozen=True, repr=False)
class BroadcastObject(Call):
    root: int = 0


@dataclass(frozen=True, repr=False)
class AllGatherObject(Call):
    pass


@dataclass(frozen=True, repr=False)
class SetOptimizer(Call):
    """Another optimizer, in a store that has one."""

    optimizer: Sgd


@dataclass(frozen=True, repr=False)
class LearningRate(Call):
    """Change the learning rate of the store's optimizer, which has no schedule."""

    rate: float


@dataclass(frozen=True, repr=False)
class Save(Call):
    """Save a checkpoint."""


@dataclass(frozen=True, repr=False)
class Load(Call):
    """Load the newest checkpoint of the same keys, if there is one."""


@dataclass(frozen=True, repr=False)
class Move(Call):
    """Save a checkpoint, close the store, and load the checkpoint into another store.

    Attributes
    ----------
    empty : bool
        Whether the new store gets its keys from the checkpoint; else it has them in another order.
    """

    update_on: str = "every_rank"
    bucket_bytes: int = 25 << 20
    empty: bool = False


@dataclass(frozen=True, repr=False)
class Program(Plain):
    """A program.

    Attributes
    ----------
    size : int
        Count of ranks.
    environment : tuple of (str, str)
        Variables, equal on all ranks.
    timeout : float
        Seconds that a rank waits for another, in stores without a timeout of their own.
    closes : bool
        Whether the program closes its stores at the end.
    """

    size: int
    stores: tuple[StorePlan, ...]
    steps: tuple[Step, ...]
    environment: tuple[tuple[str, str], ...] = ()
    timeout: float = 300.0
    closes: bool = True
