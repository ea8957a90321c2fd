"""One rank's stores in a program, each with its model."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import numpy as np

import ncclkv
from ncclkv.comm import world
from tests.world import plan as p
from tests.world.arrays import Array
from tests.world.coded import CODECS
from tests.world.layouts import laid_out
from tests.world.model import Model, State, by_op
from tests.world.twin import Twin, optimizer


class WrongValue(AssertionError):
    """A call gave another value than the model."""


class OnPurpose(Exception):
    """The program of a rank fails, as a step of it demands."""


class Ended(Exception):
    """The program of a rank ends before its last step."""


class Store:
    """A store, and what it should hold.

    Attributes
    ----------
    kv : KVStore
    model : Model
    optimizer : Optimizer or None
    saved : (str, State) or None
        The path of the newest checkpoint, and its contents.
    spoilt : bool
        Whether ranks have made different calls, after which no value is right.
    """

    def __init__(self, kv: Any, model: Model) -> None:
        self.kv = kv
        self.model = model
        self.optimizer: Any = None
        self.saved: tuple[str, State] | None = None
        self.spoilt = False

    def use(self, rule: p.Sgd | p.Other) -> None:
        """Set an optimizer."""
        self.optimizer = descent(rule) if isinstance(rule, p.Sgd) else optimizer(rule)
        self.kv.set_optimizer(self.optimizer)

    def change(self, rate: float | None) -> float:
        """Change the learning rate, where there is one; return what it is now."""
        model = self.model
        if rate is None or model.sgd is None or model.sgd.halved_after:
            return model.rate
        self.optimizer.learning_rate = rate
        return rate

    def flush(self) -> None:
        """Reduce what was pushed, where the sizes and keys of the flush count."""
        if self.model.pending:
            self.wait()

    def wait(self) -> None:
        """Wait for all pushes."""
        self.kv.wait()
        self.model.pending.clear()


class Player:
    """One rank of a program.

    Attributes
    ----------
    program : Program
    rank : int
    step_index : int
        The index of the present step.
    stores : dict of int to Store
        By the indices that steps have.
    has_deputies : bool
        Whether threads may make calls for the rank.
    """

    has_deputies = True

    def __init__(self, program: p.Program, stack: ExitStack, files: ExitStack) -> None:
        self.program = program
        self.rank = world().rank
        self.size = program.size
        self.step_index = 0
        self.stores: dict[int, Store] = {}
        self._kept: defaultdict[str, dict[Any, Array]] = defaultdict(dict)
        self._stack = stack
        self._files = files

    def create(self, index: int, plan: p.StorePlan, *, empty: bool = False) -> Store:
        """Create a store, and give it its optimizer, and its keys unless a load does."""
        options: dict[str, Any] = {} if plan.timeout is None else {"timeout": plan.timeout}
        kv = self.open(
            update_on=plan.update_on,
            root=plan.root % self.size,
            bucket_bytes=plan.bucket_bytes,
            missing=plan.missing,
            nonfinite=plan.nonfinite,
            verify_every=plan.verify_every,
            **options,
        )
        self._stack.enter_context(kv)
        if plan.compression is not None:
            kv.set_gradient_compression(CODECS[plan.compression])
        store = self.stores[index] = Store(kv, self._model(plan))
        if plan.optimizer is not None:
            store.use(plan.optimizer)
        elif plan.adds:
            kv.set_updater(_add)
        if not empty:
            self.init(store, plan.keys)
        return store

    def _model(self, plan: p.StorePlan) -> Model:
        """Return the model of a new store."""
        if not isinstance(plan.optimizer, p.Other):
            return Model(plan, self.size)
        twin = Twin(plan, self.size)
        self._stack.callback(twin.close)
        return twin

    def open(self, **options: Any) -> Any:
        """Return a new store."""
        return ncclkv.create("threads", **options)

    def given(self, array: Array) -> Any:
        """Return an array as the program gives it to a store."""
        return array

    def placed(self, arrays: Sequence[Array], layout: str, use: str) -> list[Any]:
        """Return copies of arrays in a layout as the program gives them to a store for a use."""
        return [self.given(each) for each in laid_out(arrays, layout, self._kept[use])]

    def write(self, view: Any, array: Array) -> None:
        """Write to an array of a store."""
        view[...] = array

    def elements(self, found: Any) -> Array:
        """Return the elements of a store's array."""
        return np.asarray(found)

    def step(self, index: int) -> AbstractContextManager[None]:
        """Begin a step, whose calls the ``with`` block makes."""
        self.step_index = index
        return nullcontext()

    def init(self, store: Store, keys: tuple[p.KeyPlan, ...]) -> None:
        """Give keys zeros, in one call for each op."""
        for op, some in by_op(keys):
            zeros = [np.zeros(key.shape, key.dtype) for key in some]
            store.kv.init([key.key for key in some], zeros, op=op)

    def directory(self, store: Store) -> str:
        """Return a new directory, the same on every rank; it goes at the end."""
        path = tempfile.mkdtemp(prefix="world-") if self.rank == 0 else None
        if path is not None:
            self._files.callback(shutil.rmtree, path, ignore_errors=True)
        return str(store.kv.broadcast_object(path))

    def fail(self, ranks: tuple[int, ...]) -> None:
        """Raise the program's own error on some ranks."""
        if self.rank in ranks:
            raise OnPurpose(f"rank {self.rank} fails on purpose")

    def compare(self, store: Store, key: p.Key, found: Any) -> None:
        """Fail unless an array is the value of a key."""
        array = self.elements(found)
        if not store.spoilt and not store.model.agrees(key, array):
            self.doubt(store)
            self.wrong(
                f"store {self.number_of(store)}, key {key!r}", array, store.model.values[key]
            )

    def same(self, store: Store, what: str, found: Any, wanted: Array) -> None:
        """Fail unless the result of a verb without keys is as it should be."""
        array = self.elements(found)
        if not store.spoilt and not np.array_equal(array, wanted):
            self.doubt(store)
            self.wrong(f"store {self.number_of(store)}, {what}", array, wanted)

    def doubt(self, store: Store) -> None:
        """Raise the error of a store which promises an error after a wrong value."""

    def leave(self) -> None:
        """End without `close`, as a process does."""

    def wrong(self, where: str, found: Any, wanted: Any) -> None:
        """Raise the error of a value."""
        raise WrongValue(
            f"rank {self.rank}, step {self.step_index}, {where}: found {_short(found)}, wanted "
            f"{_short(wanted)}"
        )

    def number_of(self, store: Store) -> int:
        """Return the index that steps have for a store."""
        return next(index for index, each in self.stores.items() if each is store)


def descent(sgd: p.Sgd) -> Any:
    """Return an SGD of these hyperparameters."""
    schedule = None
    if sgd.halved_after:
        schedule = ncclkv.optimizer.FactorScheduler(
            step=sgd.halved_after, factor=0.5, base_lr=sgd.learning_rate
        )
    return ncclkv.optimizer.SGD(
        learning_rate=sgd.learning_rate, momentum=sgd.momentum, wd=sgd.wd, lr_scheduler=schedule
    )


def _add(key: Any, total: Any, stored: Any) -> None:
    stored += total


def _short(value: Any) -> str:
    """Return the first elements of an array."""
    array = np.asarray(value)
    more = " ..." if array.size > 6 else ""
    return f"{array.ravel()[:6].tolist()}{more} of shape {array.shape}"
