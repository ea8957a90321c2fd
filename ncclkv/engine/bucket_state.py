"""`BucketState`: the memory of a bucket, and the ranges of its keys that are reduced."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclkv.arrays.memory import address, protected
from ncclkv.comm.base import Communicator
from ncclkv.comm.destinations import EVERYONE, To
from ncclkv.comm.types import Buffer
from ncclkv.engine.gathered import Gathered
from ncclkv.engine.node_reduction import NodeReduction
from ncclkv.engine.pushes import Pushes
from ncclkv.engine.reduction import Reduction, Span
from ncclkv.engine.reductions import Reductions
from ncclkv.kernels.base import Kernels
from ncclkv.table import plan
from ncclkv.table.bucket import Bucket, Entry, Range
from ncclkv.table.registry import Key

Array = NDArray[Any]

_MAX_SPANS = 4096

SHARED_FROM_BYTES = 64 * 1024
"""Smallest bucket whose weights the ranks of a node share.

Sharing saves memory and divides the update.  Its price is a second phase, in which each rank waits
until all ranks have written.  The sum of a smaller bucket takes less time than that phase.
"""


class BucketState(Pushes):
    """Gradients and weights of a bucket.

    Parameters
    ----------
    bucket : Bucket
    comm : Communicator
    reductions : Reductions
        Chooses what makes the sums of its gradients.
    to : To
        The destination of the sum of the whole bucket.
    share_weights : bool
        Whether the ranks of a node with shared memory share one copy of the weights.  A bucket
        smaller than `SHARED_FROM_BYTES` is never shared.
    has_values : bool
        Whether the weights have memory of their own; else they are the gradients.

    Attributes
    ----------
    bucket : Bucket
    coded : dict of Reduction by key
        The reductions of the keys whose gradients are encoded.
    gradients, weights : ndarray, shape (bucket.count,)
    to : To
    node_shared : bool
        Whether the ranks of the node share one copy of the weights, and update it together.
    viewed : bool
        Whether the program has had a view of the memory on this rank; such memory never moves.
    """

    def __init__(
        self,
        bucket: Bucket,
        comm: Communicator,
        reductions: Reductions,
        *,
        to: To = EVERYONE,
        share_weights: bool = False,
        has_values: bool = True,
    ) -> None:
        super().__init__(len(bucket.entries))
        self.bucket = bucket
        self.reductions = reductions
        self.coded = reductions.choose(bucket)
        self.to = to
        self._comm = comm
        self.gradients: Buffer = comm.allocate(bucket.nbytes).view(bucket.dtype)
        share = share_weights and has_values and bucket.nbytes >= SHARED_FROM_BYTES
        weights = comm.node_shared(bucket.nbytes) if share else None
        self.node_shared = weights is not None
        self.weights: Buffer
        if weights is None:
            self.weights = self._own_memory() if has_values else self.gradients
        else:
            self.weights = weights.view(bucket.dtype)
        self._optimizer_states: dict[tuple[str, np.dtype[Any]], Buffer] = {}
        self._spans: dict[Range, Span] = {}
        self._pushed_spans: dict[Key | None, list[Span]] = {}
        # For the last push of several keys, but not all: a loop of training repeats it.
        self._part_pushed: set[Key] = set()
        self._part_spans: list[Span] = []
        self._gathered: Gathered | None = None
        self.viewed = False

    @property
    def neutral(self) -> float:
        """Return the neutral element of the bucket's op: a missing push counts as this number."""
        op, dtype = self.bucket.op, self.bucket.dtype
        if op not in ("max", "min"):
            return 1 if op == "prod" else 0
        if dtype.kind == "b":
            return op == "min"
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return int(limits.min if op == "max" else limits.max)
        return float("-inf") if op == "max" else float("inf")

    def _own_memory(self) -> Buffer:
        """Allocate memory for the weights that no other rank shares."""
        return self._comm.allocate(self.bucket.nbytes).view(self.bucket.dtype)

    def unshare_weights(self) -> None:
        """Copy the weights to this rank's own memory, so that user code may write to them."""
        if self.node_shared:
            own = self._own_memory()
            own[...] = self.weights
            self.weights, self.node_shared = own, False
            self._optimizer_states.clear()
            self._forget_spans()

    def begin_rule(self, to: To) -> None:
        """Begin launches under another update rule, whose sums go to `to`; nothing waits.

        All earlier updates are published.
        """
        self.launched = False
        if to != self.to:
            self.to = to
            self._forget_spans()

    def choose_reductions(self) -> None:
        """Choose the reductions again, after the codecs in force have changed; nothing waits."""
        self.coded = self.reductions.choose(self.bucket)
        self.launched = False
        self._forget_spans()

    def _forget_spans(self) -> None:
        """Drop the ranges, whose weights, destination or reduction have changed."""
        self._spans.clear()
        self._pushed_spans.clear()
        self._part_pushed, self._part_spans, self._gathered = set(), [], None

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
        """Return the zeroed optimizer state of that name.

        The state has one element for each weight that this rank updates, if sums go to `to`.
        Collective if the ranks of the node share the weights and update all of them together: then
        they share the state, too.
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

    def select(self, keys: Set[Key] | None = None) -> tuple[Set[Key], Sequence[Span]]:
        """Return the pushed keys, or those of them in `keys`, for a launch.

        Returns
        -------
        set of keys
            The pushed keys themselves, without `keys`.
        sequence of Span
            The ranges that hold these keys and no other key.
        """
        self.launched = True
        selected = self.waiting if keys is None else self.waiting & keys
        # As `spans`, whose call a push of all keys saves.
        cached = self._pushed_spans.get(None) if len(selected) == self.key_count else None
        return selected, self.spans(selected) if cached is None else cached

    def spans(self, pushed: Set[Key]) -> Sequence[Span]:
        """Return the ranges that hold keys and no other key."""
        # Cached for pushes of all keys, under None, and for pushes of one key after another.
        which = None
        if len(pushed) != self.key_count:
            if len(pushed) > 1:
                if pushed != self._part_pushed:
                    self._part_pushed, self._part_spans = set(pushed), self._spans_of(pushed)
                return self._part_spans
            (which,) = pushed
        cached = self._pushed_spans.get(which)
        if cached is None:
            cached = self._pushed_spans[which] = self._spans_of(pushed)
        return cached

    def gathered(self, spans: Sequence[Span]) -> Gathered:
        """Return the array of several ranges; the same array for the ranges of the last call."""
        if self._gathered is None or self._gathered.spans != spans:
            self._gathered = Gathered(spans, self.to, self._comm)
        return self._gathered

    def own_spans(self) -> Sequence[Span]:
        """Return the ranges that hold the keys of `own` and no other key."""
        return self._spans_of(self.own) if self._filled else self.spans(self.waiting)

    def _spans_of(self, keys: Set[Key]) -> list[Span]:
        """Return the ranges that hold `keys` of one reduction and no other key, in their order."""
        if not self.coded:
            return [self.span(bounds) for bounds in plan.spans(self.bucket, keys)]
        groups: dict[Reduction | None, set[Key]] = {}
        for key in keys:
            groups.setdefault(self.coded.get(key), set()).add(key)
        found = []
        for reduction, group in groups.items():
            for bounds in plan.spans(self.bucket, group):
                span = self.span(bounds)
                span.reduction = reduction
                found.append(span)
        return sorted(found, key=attrgetter("lo"))

    def span(self, bounds: Range) -> Span:
        """Return a range of elements; the same object for the same bounds."""
        cached = self._spans.get(bounds)
        if cached is None:
            if len(self._spans) == _MAX_SPANS:
                self._spans.clear()
            lo, hi = bounds
            gradients, weights = self.gradients[lo:hi], self.weights[lo:hi]
            label = plan.label(self.bucket, bounds)
            to = self.to.within(lo, hi)
            cached = Span(lo, hi, gradients, weights, label, to, self.node_shared)
            cached.bucket = self.bucket
            self._spans[bounds] = cached
        return cached

    def drop(self, keys: Collection[Key] | None = None) -> None:
        self.reductions.drop_staged(self.waiting if keys is None else keys)
        super().drop(keys)


class Slot:
    """A key's range in its bucket.

    Attributes
    ----------
    gradient, weight : ndarray, flat
    gradient_view, weight_view : ndarray of the key's shape
        Views of the same memory; `weight_view` is read-only if the array library has such views.
    lent : bool
        Whether the user holds a view of the gradient, and may be writing to it.
    """

    def __init__(self, state: BucketState, entry: Entry) -> None:
        self.state = state
        self.entry = entry
        self.gradient = state.gradients[entry.lo : entry.hi]
        self.gradient_view = self.gradient.reshape(entry.spec.shape)
        self._address = address(self.gradient)
        self.lent = False
        self.find_weight()

    def find_weight(self) -> None:
        """Set `weight` to a view of the bucket's weights, which may have moved."""
        self.weight = self.state.weights[self.entry.lo : self.entry.hi]
        self.weight_view: Array = protected(self.weight).reshape(self.entry.spec.shape)

    def push_neutral(self, kernels: Kernels) -> None:
        """Push the neutral element of the key's op, in place of an array of this rank."""
        self.state.complete()
        kernels.fill(self.gradient, self.state.neutral)
        self.state.push_filled(self.entry.key)

    def holds(self, value: Array) -> bool:
        """Return whether `value` is a view of this key's whole gradient."""
        return (
            value.flags.c_contiguous
            and value.shape == self.gradient_view.shape
            and address(value) == self._address
        )
