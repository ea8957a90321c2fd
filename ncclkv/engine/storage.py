"""`StoredBucket`, `StoredKey`, `StoredPush`: buckets, keys and pushes, whatever the storage.

A storage is a form of the values, and of what ranks push.  Each storage has a class for each of the
three, and a rule for its keys (`ncclkv.engine.storage_table`).  All of them share the pushes of a
bucket (`Pushes`), its destination and its weights: one flat array, from which a pull copies.

A launch asks a bucket for the ranges to reduce.  The `Reduction` of a range makes its sum, from
arrays of any form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ncclkv.arrays.memory import protected
from ncclkv.comm.base import Communicator
from ncclkv.comm.destinations import EVERYONE, To
from ncclkv.comm.types import Buffer
from ncclkv.engine.events import Events
from ncclkv.engine.gathered import Gathered
from ncclkv.engine.node_reduction import NodeReduction
from ncclkv.engine.pushes import Pushes
from ncclkv.engine.reduction import Reduction, Span
from ncclkv.engine.reductions import Reductions
from ncclkv.errors import NotSupported
from ncclkv.kernels.base import Kernels
from ncclkv.table.bucket import Bucket, Entry, Range
from ncclkv.table.registry import Key

if TYPE_CHECKING:
    from ncclkv.optimizer.scalar_rows import Pushed

Array = NDArray[Any]


class StoredBucket(Pushes, ABC):
    """The pushes and the values of a bucket.

    Parameters
    ----------
    bucket : Bucket
    comm : Communicator
    reductions : Reductions
    to : To
        The destination of the sum of the whole bucket.

    Attributes
    ----------
    bucket, reductions, to
        As the parameters.
    weights : ndarray, shape (bucket.count,)
        The values of all keys.
    node_shared : bool
        Whether the ranks of the node share one copy of the weights, and update it together.
    coded : dict of Reduction by key
        The reductions of the keys whose gradients are encoded.
    viewed : bool
        Whether the program has had a view of the memory on this rank; such memory never moves.
    """

    weights: Buffer

    def __init__(
        self, bucket: Bucket, comm: Communicator, reductions: Reductions, *, to: To = EVERYONE
    ) -> None:
        super().__init__(len(bucket.entries))
        self.bucket = bucket
        self.reductions = reductions
        self.to = to
        self.node_shared = False
        self.coded: Mapping[Key, Reduction] = {}
        self.viewed = False
        self._comm = comm
        self._optimizer_states: dict[tuple[str, np.dtype[Any]], Buffer] = {}
        self._gathered: Gathered | None = None

    # What a storage has

    @abstractmethod
    def select(self, keys: Set[Key] | None = None) -> tuple[Set[Key], Sequence[Span]]:
        """Return the keys that wait, or those of them in `keys`, for a launch.

        Returns
        -------
        set of keys
            The waiting keys themselves, without `keys`.
        sequence of Span
            The ranges that hold these keys and no other key.
        """

    @abstractmethod
    def span(self, bounds: Range) -> Span:
        """Return a range of elements, to reduce or to publish."""

    @abstractmethod
    def own_arrays(self) -> Sequence[Array]:
        """Return few arrays with all elements of `own` keys, to be searched for NaN."""

    @property
    def lent_memory(self) -> Sequence[Array]:
        """The memory beside the weights that the program may have views of."""
        return ()

    def choose_reductions(self) -> None:
        """Choose the reductions again, after the codecs in force have changed; nothing waits."""

    def unshare_weights(self) -> None:
        """Copy the weights to this rank's own memory, so that user code may write to them."""

    def _forget_spans(self) -> None:
        """Drop the ranges, whose weights, destination or reduction have changed."""
        self._gathered = None

    # Destination, and states of the optimizer

    def begin_rule(self, to: To) -> None:
        """Begin launches under another update rule, whose sums go to `to`; nothing waits.

        All earlier updates are published.
        """
        self.launched = False
        if to != self.to:
            self.to = to
            self._forget_spans()

    @property
    def neutral(self) -> float:
        """Return the neutral element of the bucket's op: a missing push counts as this value."""
        op, dtype = self.bucket.op, self.bucket.dtype
        if op not in ("max", "min"):
            return 1 if op == "prod" else 0
        if dtype.kind == "b":
            return op == "min"
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return int(limits.min if op == "max" else limits.max)
        return float("-inf") if op == "max" else float("inf")

    @property
    def sent_by_nodes(self) -> bool:
        """Return whether any key is encoded with nodes as senders."""
        return any(isinstance(each, NodeReduction) for each in self.coded.values())

    def part(self, to: To) -> Range:
        """Return the elements that this rank updates, if sums go to `to` and this rank updates."""
        return to.part(self._comm.rank, self.bucket.count)

    def shares_states(self, to: To) -> bool:
        """Return whether the ranks of the node share optimizer states, if sums go to `to`."""
        return self.node_shared and not to.divided

    def updates_key(self, entry: Entry) -> bool:
        """Return whether this rank updates a key, if it updates and its rule updates whole keys."""
        return self.to.owner(entry.lo) in (None, self._comm.rank)

    def optimizer_state(self, name: str, dtype: np.dtype[Any], to: To) -> Buffer:
        """Return the zeroed optimizer state of that name; collective if a node shares the state.

        The state has one element for each weight that this rank updates, if sums go to `to`.
        The ranks of the node share the state if they share the weights and update all of them
        together.
        """
        which = name, dtype
        lo, hi = self.part(to)
        shares = self.shares_states(to)
        cached = self._optimizer_states.get(which) if shares else None
        if cached is not None:
            cached[...] = 0
            return cached
        memory = self._comm.node_shared((hi - lo) * dtype.itemsize) if shares else None
        if memory is None:
            return self._comm.kernels.zeros(hi - lo, dtype)
        self._optimizer_states[which] = memory.view(dtype)
        return self._optimizer_states[which]

    def gathered(self, spans: Sequence[Span]) -> Gathered:
        """Return the array of several ranges; the same array for the ranges of the last call."""
        if self._gathered is None or self._gathered.spans != spans:
            self._gathered = Gathered(spans, self.to, self._comm)
        return self._gathered


class StoredKey(ABC):
    """A key in its bucket.

    Attributes
    ----------
    state : StoredBucket
    entry : Entry
    weight : ndarray, flat
        The value.
    weight_view : ndarray of the key's shape
        A view of the same memory, read-only if the array library has such views.
    lent : bool
        Whether the user holds a view of the gradient, and may be writing to it.
    """

    def __init__(self, state: StoredBucket, entry: Entry) -> None:
        self.state = state
        self.entry = entry
        self.lent = False
        self.find_weight()

    def find_weight(self) -> None:
        """Set `weight` to a view of the bucket's weights, which may have moved."""
        self.weight = self.state.weights[self.entry.lo : self.entry.hi]
        self.weight_view: Array = protected(self.weight).reshape(self.entry.spec.shape)

    @abstractmethod
    def pushed_arrays(self) -> Sequence[Array]:
        """Return flat arrays whose sum is this rank's push of the key, which waits."""

    @abstractmethod
    def push_neutral(self, kernels: Kernels) -> None:
        """Wait for sums in flight, and push the neutral element of the key's op."""

    def holds(self, value: Array) -> bool:
        """Return whether `value` is a view of this key's whole gradient."""
        return False

    def lend_gradient(self) -> Array:
        """Return a new view of the gradient, which the user may write to."""
        spec = self.entry.spec
        raise NotSupported(
            f"grad_view of key {spec.key!r}: keys of storage {spec.storage!r} have no array for "
            f"their gradients; push an array of your own",
            key=spec.key,
        )

    def copy_lent(self, kernels: Kernels) -> tuple[Array, Array] | None:
        """Wait for sums, and return the gradient and a copy, if the user has a view; else None."""
        return None


class StoredPush(ABC):
    """The arrays of a push that belong to one bucket, by their indices in the list of the call.

    Attributes
    ----------
    state : StoredBucket
    keys : set of keys
        The keys pushed.
    in_place : sequence of StoredKey
        Keys whose array is their own gradient, so that nothing is copied.
    several : sequence of object
        An item for each key that has several arrays.
    """

    # Few and small objects: a loop over keys finds none of them in the caches of the processor.
    __slots__ = ("in_place", "keys", "several", "state")

    state: StoredBucket
    keys: Set[Key]
    in_place: Sequence[StoredKey]
    several: Sequence[object]

    @property
    def whole(self) -> bool:
        """Return whether the push has every key, and can be copied straight to the weights."""
        return False

    def pushed(self) -> Pushed:
        """Return the bucket, the keys, and those of them that wait for an earlier launch."""
        return self.state.bucket, self.keys, self.keys & self.state.waiting

    def lend(self, arrays: Sequence[Array]) -> AbstractContextManager[None] | None:
        """Return a block in which launches encode the arrays where they are, if that can be.

        So it is for one array for each key of the bucket, if the reductions read these once.
        """
        return None

    @abstractmethod
    def copy_in(
        self,
        arrays: Sequence[Array],
        kernels: Kernels,
        events: Events,
        *,
        to_weights: bool = False,
    ) -> None:
        """Keep this rank's arrays of each key for the launch, or write their sums to the weights.

        The caller may change its arrays afterwards.  `to_weights` is set for pushes that are
        `whole`.
        """
