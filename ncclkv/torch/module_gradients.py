"""Gradients: averages the gradients of a module's parameters while backward runs.

Parameters that backward reaches first, the last of the module, get the first buckets.  In an uneven
block, which ``join`` opens, each flush begins with an exchange of the keys pushed.  So gradients
are reduced at the end of a pass.  The thread or stream of the hooks is that of
`ncclkv.torch.pass_devices`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakSet, finalize, ref
from zlib import crc32

import numpy as np
import torch

from ncclkv.errors import OrderMismatch, UsageError
from ncclkv.frames import warn
from ncclkv.store.kvstore import KVStore
from ncclkv.store.sums import InPlace, SavedResiduals, by_bucket, init_sums, settle
from ncclkv.torch.hooks import accumulation_of, counting_hook, remove
from ncclkv.torch.module_buffers import follow_once
from ncclkv.torch.module_parameters import ModuleParameters
from ncclkv.torch.pass_devices import Device
from ncclkv.torch.passes import Pass
from ncclkv.torch.slots import GradientSlot, SlotGroup
from ncclkv.torch.views import as_tensor
from ncclkv.tracebacks import public

COUNTS = "ncclkv.torch: numbers of ranks"
"""Begin of the keys of the counts of ranks that have used each parameter since the last reduction.

The last count is of all ranks that reduce.
"""

_CREATE_GRAPH = (
    "backward with create_graph=True: .grad of a DataParallel module holds averages without a "
    "graph, so nothing can be differentiated through it; call "
    "torch.autograd.grad(loss, parameters, create_graph=True) for a graph of this rank's gradients"
)


class _Kept(NamedTuple):
    """The state of a parameter that a pass on this rank has left out.

    Attributes
    ----------
    gradient : torch.Tensor or None
        Its gradient before the push.
    residuals : SavedResiduals
        Those before the push.
    """

    gradient: torch.Tensor | None
    residuals: SavedResiduals


_requires_grad = attrgetter("requires_grad")

_OPEN: WeakSet[ModuleGradients] = WeakSet()
"""The gradients that hooks still reduce."""


def check_unwrapped(parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Refuse parameters whose gradients another wrapper reduces.

    The hooks of both would copy the gradients from and to each other's buckets, while these are
    being reduced.

    Raises
    ------
    UsageError
    """
    others = [each for other in [*_OPEN] for each in other.parameters.by_key.values()]
    reduced = {*map(id, others)}
    name = next((name for name, each in parameters.items() if id(each) in reduced), None)
    if name is not None:
        raise UsageError(
            f"DataParallel: another DataParallel reduces the gradient of parameter {name!r} "
            f"already; call its close() first, or wrap both modules as one"
        )


class ModuleGradients:
    """The gradients of a module's parameters, in the buckets of a store.

    Hooks of the nodes that accumulate gradients count.  The last hook of a bucket pushes it.  The
    first push of a backward pass opens an overlap block, and a callback at the end of the pass ends
    it.  The store leaves each sum in the place of the gradient, which `.grad` is a view of.  So
    nothing is copied back.

    Parameters
    ----------
    kv : KVStore
    device : Device
    parameters : ModuleParameters
    op : {"avg", "sum"}
    find_unused : bool
        Whether a backward pass may leave out parameters that require a gradient.
    as_view : bool
        Whether `.grad` becomes a view of a bucket.

    Attributes
    ----------
    parameters : ModuleParameters
    find_unused : bool
        As given; ranks change it alike.
    divides_by_all : bool
        Whether averages divide by all ranks of the store, also by those that have ended an uneven
        block.
    reductions : int
        Count of backward passes that have reduced.
    called : bool
        Whether a forward pass of the wrapper has recorded a graph.
    """

    def __init__(
        self,
        kv: KVStore,
        device: Device,
        parameters: ModuleParameters,
        op: str,
        *,
        find_unused: bool,
        as_view: bool,
    ) -> None:
        self.divides_by_all = False
        self.reductions = 0
        self.called = False
        self._pass = Pass(self._end, bare=kv.num_workers > 1)
        self._kv, self._device = kv, device
        self.parameters = parameters
        self._op: Any = op
        self.find_unused = find_unused
        self._as_view = as_view
        self._slots: dict[str, GradientSlot] = {}
        self._active: dict[str, GradientSlot] = {}
        self._flags: list[bool] | None = None
        self._buckets: list[SlotGroup] = []
        self._bucket_of: dict[str, SlotGroup] = {}
        self._touched: set[str] = set()
        self._nodes: dict[str, torch.autograd.graph.Node] = {}  # torch frees nodes without a holder
        self._hooks: dict[str, torch.utils.hooks.RemovableHandle] = {}
        # Not by a method of this object, which a finalizer would keep.
        self._remove_hooks = finalize(self, remove, self._hooks)
        self._remove_hooks.atexit = False
        self._block: AbstractContextManager[None] | None = None
        self._skipped = kv.skipped
        self._initialized: set[str] = set()
        self._follow_flags()
        _OPEN.add(self)
        # After the first parameters: buckets are launched in order, and this is pushed last.
        self._make_counts()

    @public
    def prepare(self, *, reduces: bool) -> None:
        """Follow changes of the module on all ranks; drop what an exception has left.

        The next backward pass reduces, or accumulates on this rank.
        """
        self.drop()
        self.called = True
        self._pass.announce(reduces=reduces)
        if self.parameters.have_changed():
            self._follow_parameters()
        self._follow_flags()

    def evaluate(self) -> None:
        """Note a forward pass of the wrapper without gradients."""
        self._pass.bare = False

    # Parameters

    def _follow_parameters(self) -> None:
        """Take in parameters that the program has added or replaced, and leave those it removed."""
        new, gone = self.parameters.follow(check_unwrapped)
        for key in gone:
            self._leave(key)
        self._flags = None  # a key may have another parameter, and a parameter another node
        try:
            self._follow_flags()
            self._make_counts()
            follow_once(self._kv, new.values())
        except OrderMismatch as error:
            raise OrderMismatch(
                f"DataParallel: this rank alone may have the new parameters {', '.join(new)}; add "
                f"or replace parameters on all ranks before the same forward pass: {error}",
                ranks=error.ranks,
            ) from error

    def _leave(self, key: str) -> None:
        """Leave a parameter to the program, with its present gradient."""
        self._note_use()
        self._touched.discard(key)
        if key in self._slots:
            self._slots.pop(key).leave()

    def _follow_flags(self) -> None:
        """Follow changes of ``requires_grad``."""
        kv, parameters = self._kv, self.parameters.by_key
        flags = [*map(_requires_grad, parameters.values())]
        if flags == self._flags:
            return
        names = [name for name, each in parameters.items() if each.requires_grad]
        # Backward computes the last parameters first: they get the buckets that are launched first.
        new = [name for name in reversed(names) if name not in self._slots]
        if new:
            self._init(new)
            layouts = crc32(repr([parameters[name].stride() for name in new]).encode())
            alike = len({*kv.allgather(layouts).tolist()}) == 1
        for name in new:
            parameter = parameters[name]
            self._slots[name] = GradientSlot(parameter, kv.grad_view(name), name, alike=alike)
        self._note_use()
        self._active = {name: self._slots[name] for name in names}
        self._buckets = [
            SlotGroup({name: self._active[name] for name in group}, InPlace(kv, group))
            for group in by_bucket(kv, names)
        ]
        self._bucket_of = {name: bucket for bucket in self._buckets for name in bucket.by_key}
        remove(self._hooks)
        self._nodes = {name: accumulation_of(parameters[name]) for name in names}
        for name, bucket in self._bucket_of.items():
            hook = counting_hook(ref(self), self._pass, bucket, name)
            self._hooks[name] = self._nodes[name].register_hook(hook)
        self._flags = flags

    def _init(self, names: list[str]) -> None:
        """Initialize keys that the store does not have yet; it has those of replaced parameters."""
        new = [name for name in names if name not in self._initialized]
        if new:
            init_sums(self._kv, new, [self.parameters.by_key[name] for name in new], self._op)
            self._initialized.update(new)

    def _make_counts(self) -> None:
        """Make the counts of the ranks that have used each parameter, and of all ranks."""
        size = len(self.parameters.by_key) + 1
        self._counts_key = key = f"{COUNTS}, {size}"
        if key not in self._initialized:
            init_sums(self._kv, [key], [np.zeros(size, np.int32)])
            self._initialized.add(key)
        self._counts = self._kv.grad_view(key)
        at = next(iter(self.parameters.by_key.values())).device
        self._counted = as_tensor(self._counts, torch.int32, at, "DataParallel: the module")

    @property
    def _counting(self) -> bool:
        """Return whether a reduction counts ranks."""
        return self.find_unused or self.divides_by_all

    @property
    def _keys(self) -> list[str]:
        """Return the keys that a reduction pushes."""
        return [*self._active, self._counts_key] if self._counting else [*self._active]

    # A backward pass

    def watch(self, outputs: Any) -> None:
        """Let each pass through outputs of a forward pass reduce, also after the first pass."""
        self._pass.watch(outputs, ref(self))

    def on_output(self) -> None:
        """Begin a backward pass that reduces, if it has not begun."""
        if self._pass.ending() is None:
            self.begin()
        self._pass.reduces = True

    def on_full_bucket(self, name: str) -> None:
        """Push the bucket of a parameter, all of whose gradients backward has accumulated."""
        with self._device.hooks():
            try:
                self._push(self._bucket_of[name])
            except BaseException as error:
                self.drop(error)
                raise

    def begin(self) -> None:
        """Begin a backward pass; the pass before may have ended by an exception."""
        if self._block is not None:
            with self._device.hooks():
                self.drop()
        self._note_use()
        self._pass.begin()

    def _note_use(self) -> None:
        """Note the parameters that the last pass has used, and begin to count anew."""
        for bucket in self._buckets:
            self._touched |= bucket.given
            bucket.begin()

    def _open(self) -> None:
        """Open the overlap block of this backward pass."""
        if torch.is_grad_enabled():
            warn(_CREATE_GRAPH)
        self._skipped = self._kv.skipped
        block = self._kv.overlap(self._keys)
        block.__enter__()
        self._block = block

    def _push(self, bucket: SlotGroup) -> None:
        """Push the gradients of a bucket, from their places."""
        if self._block is None:
            self._open()
        bucket.take_gradients(as_view=self._as_view)
        bucket.sums.push()
        bucket.pushed = True

    @public
    def _end(self) -> None:
        """End the block, and give back the gradients."""
        if not self._pass.reduces:
            return
        if not any(bucket.given for bucket in self._buckets):
            self._check_nodes(self._active)  # else the pass has used none of the parameters
            return
        self._pass.finish()
        with self._device.hooks():
            try:
                kept = self._push_rest()
            except BaseException as error:
                self.drop(error)
                raise
            block, self._block = self._block, None
            if block is not None:
                block.__exit__(None, None, None)
            settle(self._kv, self._keys)
            self.reductions += 1
            self._give_back(kept)
        self._note_use()
        self._touched.clear()

    def drop(self, error: BaseException | None = None) -> None:
        """Drop the pushes of a backward pass that did not reach its end."""
        block, self._block = self._block, None
        if block is not None:
            self._pass.reduces = False
            error = error or UsageError("the backward pass before did not reach its end")
            with suppress(type(error)):
                block.__exit__(type(error), error, error.__traceback__)

    def close(self) -> None:
        """Leave the parameters to the program, with their present gradients."""
        self.drop()
        self._remove_hooks()
        self._nodes.clear()
        _OPEN.discard(self)

    # Parameters without a gradient

    def _push_rest(self) -> dict[str, _Kept]:
        """Push the other buckets, with earlier gradients or zeros for what the pass has left out.

        Returns
        -------
        dict of _Kept, by name
            For each parameter that no pass on this rank has used since the last reduction, its
            state before; it returns if no other rank has used the parameter either.
        """
        rest = [bucket for bucket in self._buckets if not bucket.pushed]
        missing = [name for bucket in rest for name in bucket.by_key if name in bucket.left]
        self._check_nodes(missing)
        if missing and not self.find_unused:
            self._refuse(missing)
        kept: dict[str, _Kept] = {}
        for name in missing:
            if name not in self._touched:
                slot = self._active[name]
                gradient = slot.parameter.grad
                own = gradient.clone() if slot.holds(gradient) else gradient
                kept[name] = _Kept(own, SavedResiduals(self._kv, name))
        for bucket in rest:
            self._push(bucket)
        if self._counting:
            self._touched.update(*(bucket.given for bucket in self._buckets))
            used = [*(name in self._touched for name in self.parameters.by_key), True]
            self._counted.copy_(torch.tensor(used, dtype=torch.int32))
            self._kv.push(self._counts_key, self._counts)
        return kept

    def _check_nodes(self, missing: Iterable[str]) -> None:
        """Refuse a pass in which gradients were accumulated by nodes without hooks."""
        nodes, parameters = self._nodes, self.parameters.by_key
        lost = [
            name
            for name in missing
            if name in nodes and accumulation_of(parameters[name]) is not nodes[name]
        ]
        if lost:
            self._flags = None  # the next forward pass registers the hooks
            raise UsageError(
                f"backward: the gradient of parameter {lost[0]!r} was not reduced, because its "
                f"tensor was replaced in place after the wrapping (by set_, swap_tensors or "
                f".data); later passes reduce it: call zero_grad(), and repeat this step"
            )

    def _refuse(self, missing: list[str]) -> None:
        """Refuse a pass that has left out parameters."""
        more = f" and {len(missing) - 1} other parameters" if len(missing) > 1 else ""
        raise UsageError(
            f"rank {self._kv.rank} of {self._kv.num_workers}: backward gave no gradient to "
            f"parameter {missing[0]!r}{more}; use all parameters in the loss, freeze those by "
            f"requires_grad_(False), or set find_unused_parameters=True{self._pass.advice}"
        )

    def _give_back(self, kept: Mapping[str, _Kept]) -> None:
        """Let `.grad` of each parameter hold the result."""
        skipped = self._kv.skipped > self._skipped
        *used_by, ranks = self._counted.tolist() if self._counting else (0,)
        used = dict(zip(self.parameters.by_key, used_by, strict=self._counting))
        unused = {name: each.gradient for name, each in kept.items() if not used[name]}
        for name in unused:
            kept[name].residuals.restore()
        for bucket in self._buckets:
            if skipped:  # no rank has the sums: an optimizer leaves out parameters without gradient
                bucket.drop_gradients()
                continue
            if self.divides_by_all:
                bucket.multiply(ranks / self._kv.num_workers)
            bucket.give_back(unused, as_view=self._as_view)
