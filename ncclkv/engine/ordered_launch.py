"""`OrderedLaunch`: launches the buckets of a ``with kv.overlap()`` block in one order.

Threads push the keys of the block in any order.  Each push is packed at once.  A bucket is launched
when its keys are pushed and all buckets before it are launched.  So ranks launch the same buckets
in the same order, whatever the order of their pushes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from ncclkv import concurrency
from ncclkv.engine.batch import Push
from ncclkv.engine.engine import Engine
from ncclkv.engine.layout import Layout
from ncclkv.engine.storage import Array
from ncclkv.errors import UsageError
from ncclkv.table.registry import Key


class BlockPlan:
    """The keys of a block and their buckets; the same for each block with these keys.

    Parameters
    ----------
    layout : Layout
    keys : dict with keys of the store
        Each has a slot, and so keeps its bucket.

    Attributes
    ----------
    keys : dict with keys of the store
    states : list of StoredBucket
        The buckets of the keys, in the order of launching.
    counts : Counter of int
        Count of the keys in each bucket, by the bucket's index.
    """

    def __init__(self, layout: Layout, keys: dict[Key, None]) -> None:
        self.keys = keys
        self.states = layout.buckets(keys)
        self.counts = Counter(layout[key].state.bucket.index for key in keys)


class OrderedLaunch:
    """The pushes of a block so far, and the buckets that they have filled.

    Each method is called under the communicator's lock, or while no other thread can push.

    Parameters
    ----------
    engine : Engine
    plan : BlockPlan
        The keys that the block pushes, each once.
    step : Any
        The optimizer's step of all pushes of the block.
    any_thread : bool
        Whether threads other than the caller's may launch collectives.  If not, their pushes wait
        for the next push of the caller's thread, or for the end of the block.
    """

    def __init__(self, engine: Engine, plan: BlockPlan, step: Any, *, any_thread: bool) -> None:
        engine.flush()
        self._engine = engine
        self._plan = plan
        self._step = step
        self._states = plan.states
        self._waiting = plan.counts.copy()
        self._threads: dict[Key, str] = {}
        self._launcher = None if any_thread else concurrency.get_ident()
        self._launched = self._complete = 0

    @property
    def pushed(self) -> Collection[Key]:
        """The keys that were pushed."""
        return self._threads

    @property
    def missing(self) -> list[Key]:
        """The keys that were not pushed, in the order of the block's keys."""
        keys, pushed = self._plan.keys, self._threads
        return [key for key in keys if key not in pushed] if len(pushed) < len(keys) else []

    @property
    def threads(self) -> list[str]:
        """The names of the threads that pushed."""
        return sorted(set(self._threads.values()))

    @property
    def launched(self) -> list[Key]:
        """The keys whose collectives are launched."""
        layout = self._engine.layout
        return [key for key in self._threads if key not in layout[key].state.waiting]

    # Pushes

    def add_push(self, push: Push, arrays: Sequence[Array], priority: int) -> None:
        """Pack a push, and launch the buckets whose turn it is; all ranks launch in one order.

        The caller may change its arrays afterwards.  Priorities have no effect.

        Raises
        ------
        UsageError
            When a key is not of the block, or was pushed before.
        """
        given, keys = push.indices.keys(), self._plan.keys
        if not given <= keys.keys() or not given.isdisjoint(self._threads):
            self._refuse(push)
        self._engine.stage(push, arrays)
        self._threads.update(dict.fromkeys(push.indices, concurrency.current_thread().name))
        for stored in push.by_bucket:
            self._waiting[stored.state.bucket.index] -= len(stored.keys)
        if self._launcher in (None, concurrency.get_ident()):
            self._launch_ready()
            self._advance()

    def _refuse(self, push: Push) -> None:
        """Refuse a push of keys that are not of the block, or were pushed before."""
        for key in push.indices:
            self._check_key("push", key)
            if key in self._threads:
                raise UsageError(
                    f"push of key {key!r} {_here()}: thread {self._threads[key]!r} has pushed it "
                    f"in this overlap block; push each key once, as a list if it has several "
                    f"arrays",
                    key=key,
                )

    def check_view(self, key: Key) -> None:
        """Refuse a view of a gradient that the block has, or that is not of the block.

        Raises
        ------
        UsageError
        """
        self._check_key("grad_view", key)
        if key in self._threads:
            raise UsageError(
                f"grad_view of key {key!r} {_here()}: thread {self._threads[key]!r} has pushed it "
                f"in this overlap block, so its gradient is the store's; write to it after the "
                f"block's end and a pull or wait",
                key=key,
            )

    def _check_key(self, verb: str, key: Key) -> None:
        """Refuse a key that is not of the block."""
        keys = self._plan.keys
        if key not in keys:
            raise UsageError(
                f"{verb} of key {key!r} {_here()}: it is not one of the {len(keys)} keys of this "
                f"overlap block; add it to keys= of overlap",
                key=key,
            )

    def _launch_ready(self) -> None:
        """Launch the buckets whose keys are pushed, up to the first bucket that lacks a key."""
        for state in self._states[self._launched :]:
            if self._waiting[state.bucket.index]:
                return
            self._launched += 1
            self._engine.launch_packed(state, self._step, last=True)

    def _advance(self) -> None:
        """Advance the collectives in flight: on hosts they progress during calls alone."""
        for state in self._states[self._complete : self._launched]:
            if not state.poll():
                return
            self._complete += 1

    # The end of the block

    def fill_missing(self) -> None:
        """Wait for sums in flight, and push neutral elements for each key that was not pushed."""
        for key in self.missing:
            self._engine.layout[key].push_neutral(self._engine.kernels)
            self._threads[key] = concurrency.current_thread().name
        self._waiting.clear()

    def launch_rest(self) -> None:
        """Launch the last buckets; collective.

        Before the end is recorded, because other ranks may have launched these buckets inside the
        block.
        """
        self._engine.updates.applying = True
        self._launch_ready()
        self._engine.updates.applying = False

    def commit(self) -> None:
        """Wait for all sums, and call the updater for them if it is a function; collective."""
        updates = self._engine.updates
        updates.applying = True
        if updates.rule.by_key:
            self._engine.policy.update_by_key(self._plan.keys)
        updates.applying = False

    def cancel(self) -> None:
        """Drop the pushes that are not launched."""
        self._engine.drop(self._threads)


def _here() -> str:
    """Return text that names the calling thread."""
    return f"from thread {concurrency.current_thread().name!r}"
