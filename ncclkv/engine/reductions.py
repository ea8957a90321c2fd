"""`Reductions`: chooses the reduction of each key of a store, by the codecs in force."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ncclkv.comm.base import Communicator
from ncclkv.compress.base import Codec
from ncclkv.compress.powersgd import PowerSGD
from ncclkv.engine.array_reduction import ArrayReduction, StagedArrays
from ncclkv.engine.array_sums import (
    ArraySum,
    CountedArrays,
    HalfArrays,
    LowRankArrays,
    TopArrays,
)
from ncclkv.engine.bases import Bases
from ncclkv.engine.codec_rules import CodecRule
from ncclkv.engine.coded_reduction import CodedReduction
from ncclkv.engine.half_reduction import HalfReduction
from ncclkv.engine.node_coders import CountedNodes, HalfNodes, NodeCoder, TopNodes
from ncclkv.engine.node_reduction import NodeReduction
from ncclkv.engine.power_reduction import PowerReduction
from ncclkv.engine.reduction import DenseReduction, Reduction
from ncclkv.engine.residuals import Residuals
from ncclkv.engine.saturation import Saturation
from ncclkv.engine.top_reduction import TopReduction
from ncclkv.kernels.base import Arrays, Kernels
from ncclkv.table.bucket import Bucket
from ncclkv.table.registry import Key, KeySpec


class Reductions:
    """The reductions of one store.

    Parameters
    ----------
    comm : Communicator
    each_array_sends : bool
        Whether each array of a key is encoded by itself, with a residual of its own, as in stores
        of one process; else the arrays of a rank are added first.

    Attributes
    ----------
    comm : Communicator
    dense : DenseReduction
        The reduction of keys that are not encoded.
    rules : list of CodecRule
        The last rule that matches a key counts.
    residuals : Residuals
    bases : Bases
    saturation : Saturation
    each_array_sends : bool
        As given.
    node_count : int
        With one node a codec whose senders are nodes encodes nothing.
    """

    def __init__(self, comm: Communicator, *, each_array_sends: bool = False) -> None:
        self.dense = DenseReduction(comm)
        self.rules: list[CodecRule] = []
        self.residuals = Residuals(comm.kernels)
        self.bases = Bases(comm.kernels)
        nodes = comm.nodes or [range(comm.size)]
        self.saturation = Saturation(comm.rank, [*nodes[0]])
        self.node_count = len(nodes)
        self.comm = comm
        self.each_array_sends = each_array_sends
        self._staged = StagedArrays() if each_array_sends else None
        self._chosen: dict[Key, Codec] = {}

    def add(self, rule: CodecRule) -> None:
        """Put a rule in force; it counts before all earlier rules."""
        if rule.for_all:
            self.rules.clear()
        self.rules.append(rule)

    def rule(self, key: Key) -> CodecRule | None:
        """Return the rule in force for a key."""
        return next((rule for rule in reversed(self.rules) if rule.matches(key)), None)

    def codec(self, spec: KeySpec) -> Codec | None:
        """Return the codec of a key; None if the key is not encoded."""
        rule = self.rule(spec.key)
        return rule.codec if rule is not None and self.encodes(rule, spec) else None

    def encodes(self, rule: CodecRule, spec: KeySpec) -> bool:
        """Return whether a rule has a key encoded here.

        A key whose senders are nodes is not encoded on one node.  A key is not encoded if its
        payloads would be longer than the key itself.
        """
        codec = rule.codec
        if codec is None or not rule.encodes(spec) or (by_node(codec) and self.node_count == 1):
            return False
        return codec.pays(spec.shape, self.senders(codec))

    def senders(self, codec: Codec) -> int:
        """Return the count of the senders of a codec: nodes or ranks."""
        return self.node_count if by_node(codec) else self.comm.size

    def choose(self, bucket: Bucket) -> dict[Key, Reduction]:
        """Return the reductions of the keys of a bucket whose sums are not those of `dense`."""
        found: dict[Key, Reduction] = {}
        made: dict[Codec, Reduction] = {}
        for entry in bucket.entries:
            codec = self.follow(entry.spec)
            if codec is not None:
                if codec.keeps_residual:
                    self.residuals.of(entry.spec)  # allocated here, not in the middle of a push
                if codec not in made:
                    made[codec] = self._make(codec, bucket)
                found[entry.key] = made[codec]
        found.update(self._short_keys(bucket, made))
        return found

    def _short_keys(
        self, bucket: Bucket, made: Mapping[Codec, Reduction]
    ) -> Iterator[tuple[Key, Reduction]]:
        """Yield the keys of a bucket that are not encoded, but summed with those that are."""
        takes = {
            codec: reduction
            for codec, reduction in made.items()
            if FORMS[codec.name].takes_short_keys and not self.each_array_sends
        }
        for spec in (entry.spec for entry in bucket.entries if takes):
            rule = self.rule(spec.key)
            if rule is None or rule.codec not in takes or self.encodes(rule, spec):
                continue
            if rule.encodes(spec):
                yield spec.key, takes[rule.codec]

    def reset(self, key: Key) -> None:
        """Forget what has not been sent of a key, whose value is set."""
        self.residuals.reset(key)
        self.bases.reset(key)

    def follow(self, spec: KeySpec) -> Codec | None:
        """Return the codec of a key, once residuals of another type of codec are dropped.

        A residual stays while its key keeps the type of its codec, and the kind of its sender.
        """
        key, codec = spec.key, self.codec(spec)
        before = self._chosen.pop(key, None)
        if before is not codec:
            self.saturation.drop([key])
        if codec is None or (before is not None and kind_of(before) != kind_of(codec)):
            self.residuals.drop([key])
            self.bases.drop([key])
            if self._staged is not None:
                self._staged.forget(key)
        if codec is not None:
            self._chosen[key] = codec
        return codec

    def _make(self, codec: Codec, bucket: Bucket) -> Reduction:
        """Make the reduction of a codec: over ranks, over nodes, or of arrays of this process."""
        form = FORMS[codec.name]
        if self._staged is not None:
            sums = form.of_arrays(self, codec, bucket)
            return ArrayReduction(self.comm, codec, sums, self.residuals, self._staged)
        if by_node(codec):
            return form.over_nodes(self, codec, bucket)
        return form.over_ranks(self, codec, bucket)

    # Arrays that are encoded one by one

    def stage(self, spec: KeySpec, arrays: Arrays, kernels: Kernels) -> Arrays:
        """Return the arrays of a push of a key, or copies if each of them is encoded by itself.

        `kernels` are those of the push: in a capture they refuse new memory.
        """
        if self._staged is None:
            return arrays
        staged = self._staged.stage(spec.key, arrays, kernels)
        codec = self._chosen[spec.key]
        if codec.keeps_residual:
            self.residuals.of(spec, len(arrays) - 1)  # here, and so not in a capture
        return staged

    def drop_staged(self, keys: Iterable[Key]) -> None:
        """Forget the arrays of pushes that are dropped."""
        if self._staged is not None:
            self._staged.drop(keys)


class Form(NamedTuple):
    """The sums of codecs of one kind, in a store.

    Attributes
    ----------
    over_ranks : callable
        Returns the reduction over ranks of a bucket's keys.
    of_arrays : callable
        Returns the sums of the arrays of a bucket's keys in one process.
    over_nodes : callable
        Returns the reduction whose senders are nodes.
    takes_short_keys : bool
        Whether the reduction over ranks also sums the keys of its bucket that are too short to be
        encoded, which saves them a collective of their own.
    captured : bool
        Whether a replay of a captured launch is another launch.
    """

    over_ranks: Callable[[Reductions, Any, Bucket], Reduction]
    of_arrays: Callable[[Reductions, Any, Bucket], ArraySum]
    over_nodes: Callable[[Reductions, Any, Bucket], Reduction]
    takes_short_keys: bool = False
    captured: bool = True


def _over_nodes(store: Reductions, codec: Any, bucket: Bucket, coder: NodeCoder) -> Reduction:
    """Return the reduction whose senders are nodes."""
    return NodeReduction(store.comm, codec, bucket, store.residuals, coder)


_COUNTED = Form(
    lambda store, codec, bucket: CodedReduction(
        store.comm, codec, bucket, store.residuals, store.saturation
    ),
    lambda store, codec, bucket: CountedArrays(store.comm, codec, bucket, store.saturation),
    lambda store, codec, bucket: _over_nodes(
        store,
        codec,
        bucket,
        CountedNodes(codec, store.comm.kernels, store.saturation),
    ),
)
_HALF = Form(
    lambda store, codec, bucket: HalfReduction(store.comm, codec, bucket, store.residuals),
    lambda store, codec, bucket: HalfArrays(store.comm, codec, bucket),
    lambda store, codec, bucket: _over_nodes(
        store, codec, bucket, HalfNodes(codec, store.comm.kernels)
    ),
)
_TOP = Form(
    lambda store, codec, bucket: TopReduction(store.comm, codec, bucket, store.residuals),
    lambda store, codec, bucket: TopArrays(store.comm, codec),
    lambda store, codec, bucket: _over_nodes(
        store, codec, bucket, TopNodes(codec, store.comm.kernels)
    ),
)


def _low_rank(store: Reductions, codec: PowerSGD, bucket: Bucket) -> Reduction:
    """Return the reduction of powersgd, whose sums are the same for ranks as for nodes.

    They depend on the sum of what all senders owe, and this does not depend on who they are.
    """
    return PowerReduction(store.comm, codec, bucket, store.residuals, store.bases)


_LOW_RANK = Form(
    _low_rank,
    lambda store, codec, bucket: LowRankArrays(store.comm, codec, store.bases),
    _low_rank,
    takes_short_keys=True,
    captured=False,
)

FORMS: dict[str, Form] = {
    **dict.fromkeys(("1bit", "2bit"), _COUNTED),
    **dict.fromkeys(("fp16", "bf16"), _HALF),
    "topk": _TOP,
    "powersgd": _LOW_RANK,
}
"""The sums of each type of codec."""


def by_node(codec: Codec) -> bool:
    """Return whether the sender of a codec is a node."""
    return bool(codec.parameters["scope"] == "node")


def adds_first(codec: Codec) -> bool:
    """Return whether the ranks of a node add their gradients, before this sum is encoded."""
    return by_node(codec) and codec.name != PowerSGD.name


def kind_of(codec: Codec) -> tuple[str, bool]:
    """Return what a residual depends on: the type of its codec, and whether nodes send."""
    return codec.name, by_node(codec)
