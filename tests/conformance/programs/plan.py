"""Plan of a program: plain data, equal on every rank.

Keys are indices into a store's `KeyPlan`s and stores are indices into a program's stores; both are
taken modulo their count.
"""

from __future__ import annotations

from dataclasses import dataclass

Key = int | str


@dataclass(frozen=True)
class KeyPlan:
    """A key, and its value once it is initialised."""

    key: Key
    shape: tuple[int, ...]
    dtype: str
    op: str


@dataclass(frozen=True)
class StorePlan:
    """The options of a store, and the keys that the program may give it."""

    keys: tuple[KeyPlan, ...]
    update_on: str
    root: int
    bucket_bytes: int | None


@dataclass(frozen=True)
class SgdPlan:
    """Hyperparameters of an optimizer: powers of two, so that few steps are exact in float32."""

    learning_rate: float
    momentum: float
    wd: float
    rescale_grad: float
    clip_gradient: float | None


@dataclass(frozen=True)
class Value:
    """An array to push.

    `source` is "fresh" (values of this call and rank), "stored" (``value`` of the key `of`),
    "previous" (what was last pulled of the key `of`), "gradient" (the key's own ``grad_view``) or
    "shared" (the `of`-th array that this call has already); where that cannot be, it is fresh.
    """

    source: str = "fresh"
    of: int = 0
    layout: str = "plain"


@dataclass(frozen=True)
class Item:
    """A key of a push, with its arrays."""

    key: int
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Outs:
    """The arrays that a pull writes: `count` for each key, or one for all keys of a shape."""

    layout: str = "plain"
    dtype: str | None = None
    count: int = 1
    shared: bool = False


@dataclass(frozen=True)
class Op:
    """Operation on a store."""

    store: int


@dataclass(frozen=True)
class Init(Op):
    keys: tuple[int, ...]


@dataclass(frozen=True)
class Reset(Op):
    keys: tuple[int, ...]


@dataclass(frozen=True)
class Broadcast(Op):
    keys: tuple[int, ...]
    outs: Outs


@dataclass(frozen=True)
class Push(Op):
    items: tuple[Item, ...]
    priority: int = 0


@dataclass(frozen=True)
class Pull(Op):
    """Pull into `outs`, or into new arrays."""

    keys: tuple[int, ...]
    outs: Outs | None
    local: bool = False


@dataclass(frozen=True)
class PushPull(Op):
    """Push and pull into `outs`, or in place."""

    items: tuple[Item, ...]
    outs: Outs | None
    priority: int = 0


@dataclass(frozen=True)
class Wait(Op):
    """Wait for `keys`, or for all keys."""

    keys: tuple[int, ...] | None


@dataclass(frozen=True)
class Barrier(Op):
    pass


@dataclass(frozen=True)
class Look(Op):
    """Local queries, made on every `stride`-th rank alone."""

    key: int
    stride: int


@dataclass(frozen=True)
class SetUpdater(Op):
    """A function, or an object, that adds `factor` times the sum, and raises at one key."""

    factor: int
    raises_at: int | None
    as_object: bool


@dataclass(frozen=True)
class SetOptimizer(Op):
    which: int


@dataclass(frozen=True)
class Tune(Op):
    """Change a hyperparameter of an optimizer, or its factor for one key of a store."""

    which: int
    name: str
    value: float
    key: int


@dataclass(frozen=True)
class Misuse(Op):
    name: str
    key: int


@dataclass(frozen=True)
class Group(Op):
    """A ``with kv.group()`` block, which an exception may leave at its end."""

    body: tuple[Op, ...]
    fails: bool


@dataclass(frozen=True)
class Program:
    stores: tuple[StorePlan, ...]
    optimizers: tuple[SgdPlan, ...]
    ops: tuple[Op, ...]
