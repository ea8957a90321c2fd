"""`BucketState`: the memory of a bucket, and the ranges of its keys that are reduced."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from operator import attrgetter

from ncclkv.arrays.memory import address
from ncclkv.comm.base import Communicator
from ncclkv.comm.destinations import EVERYONE, To
from ncclkv.comm.types import Buffer
from ncclkv.engine.reduction import Reduction, Span
from ncclkv.engine.reductions import Reductions
from ncclkv.engine.storage import Array, StoredBucket, StoredKey
from ncclkv.kernels.base import Kernels
from ncclkv.table import plan
from ncclkv.table.bucket import Bucket, Entry, Range
from ncclkv.table.registry import Key

_MAX_SPANS = 4096

SHARED_FROM_BYTES = 64 * 1024
"""Smallest bucket whose weights the ranks of a node share.

Sharing saves memory and divides the update.  Its price is a second phase, in which each rank waits
until all ranks have written.  The sum of a smaller bucket takes less time than that phase.
"""


class BucketState(StoredBucket):
    """Gradients and weights of a bucket of dense keys.

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
    gradients : ndarray, shape (bucket.count,)
        The gradients of all keys.
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
        super().__init__(bucket, comm, reductions, to=to)
        self.coded = reductions.choose(bucket)
        self.gradients: Buffer = comm.allocate(bucket.nbytes).view(bucket.dtype)
        share = share_weights and has_values and bucket.nbytes >= SHARED_FROM_BYTES
        weights = comm.node_shared(bucket.nbytes) if share else None
        self.node_shared = weights is not None
        if weights is None:
            self.weights = self._own_memory() if has_values else self.gradients
        else:
            self.weights = weights.view(bucket.dtype)
        self._spans: dict[Range, Span] = {}
        self._pushed_spans: dict[Key | None, list[Span]] = {}
        # For the last push of several keys, but not all: a loop of training repeats it.
        self._part_pushed: set[Key] = set()
        self._part_spans: list[Span] = []

    def _own_memory(self) -> Buffer:
        """Allocate memory for the weights that no other rank shares."""
        return self._comm.allocate(self.bucket.nbytes).view(self.bucket.dtype)

    def unshare_weights(self) -> None:
        if self.node_shared:
            own = self._own_memory()
            own[...] = self.weights
            self.weights, self.node_shared = own, False
            self._optimizer_states.clear()
            self._forget_spans()

    def choose_reductions(self) -> None:
        self.coded = self.reductions.choose(self.bucket)
        self.launched = False
        self._forget_spans()

    def _forget_spans(self) -> None:
        super()._forget_spans()
        self._spans.clear()
        self._pushed_spans.clear()
        self._part_pushed, self._part_spans = set(), []

    def select(self, keys: Set[Key] | None = None) -> tuple[Set[Key], Sequence[Span]]:
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

    def own_arrays(self) -> Sequence[Array]:
        spans = self._spans_of(self.own) if self._filled else self.spans(self.waiting)
        return [span.gradients for span in spans]

    @property
    def lent_memory(self) -> Sequence[Array]:
        return [self.gradients]

    def _spans_of(self, keys: Set[Key]) -> list[Span]:
        """Return the ranges that hold `keys` of one reduction and no other key, in their order."""
        if not self.coded:
            return [self.span(bounds) for bounds in plan.ranges(self.bucket, keys)]
        groups: dict[Reduction | None, set[Key]] = {}
        for key in keys:
            groups.setdefault(self.coded.get(key), set()).add(key)
        found = []
        for reduction, group in groups.items():
            for bounds in plan.ranges(self.bucket, group):
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


class Slot(StoredKey):
    """A dense key's range in its bucket.

    Attributes
    ----------
    gradient : ndarray, flat
    gradient_view : ndarray of the key's shape
        A view of the same memory.
    """

    state: BucketState

    def __init__(self, state: BucketState, entry: Entry) -> None:
        super().__init__(state, entry)
        self.gradient = state.gradients[entry.lo : entry.hi]
        self.gradient_view = self.gradient.reshape(entry.spec.shape)
        self._address = address(self.gradient)

    def pushed_arrays(self) -> Sequence[Array]:
        return [self.gradient]

    def push_neutral(self, kernels: Kernels) -> None:
        self.state.complete()
        kernels.fill(self.gradient, self.state.neutral)
        self.state.push_filled(self.entry.key)

    def holds(self, value: Array) -> bool:
        return (
            value.flags.c_contiguous
            and value.shape == self.gradient_view.shape
            and address(value) == self._address
        )

    def lend_gradient(self) -> Array:
        self.lent = self.state.viewed = True
        view: Array = self.gradient_view.view()
        return view

    def copy_lent(self, kernels: Kernels) -> tuple[Array, Array] | None:
        if not self.lent:
            return None
        self.state.complete()
        return self.gradient, kernels.copy(self.gradient)
