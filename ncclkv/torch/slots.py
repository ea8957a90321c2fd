"""Slots: the parameters of a module, and the places of their gradients in a bucket of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter, is_
from sys import getrefcount
from typing import Any

import torch

from ncclkv.errors import NotSupported, UsageError
from ncclkv.store.sums import InPlace
from ncclkv.torch.views import as_tensor


class GradientSlot:
    """A parameter and its gradient's place in a bucket.

    The place has the parameter's layout, such as channels last, if it is the same on all ranks.
    Without it torch warns, and its optimizers are slower.

    Attributes
    ----------
    parameter : torch.nn.Parameter
    array : ndarray
        The place, as the store's array.
    tensor : torch.Tensor
        The place, as a tensor that only this object has.  `.grad` is another tensor of the same
        memory: programs, and ``Module.to``, replace its ``data``.
    view : torch.Tensor
        This other tensor.
    references : int
        The references to `view` while the program holds none, by ``getrefcount(slot.view)``.
    """

    def __init__(
        self, parameter: torch.nn.Parameter, array: Any, name: str, *, alike: bool
    ) -> None:
        self.parameter = parameter
        self.array = array
        what = f"DataParallel: parameter {name!r}"
        self.tensor = as_tensor(array, parameter.dtype, parameter.device, what)
        strides = parameter.stride()
        if alike and torch.empty_like(parameter).stride() == strides:  # dense, without overlaps
            self.tensor = self.tensor.as_strided(parameter.shape, strides)
        self._address = self.tensor.data_ptr()
        self.view = self.tensor.detach()
        self.references = getrefcount(self.view)

    def holds(self, gradient: torch.Tensor | None) -> bool:
        """Return whether `.grad` is the view of the place."""
        return self.view.data_ptr() == self._address and gradient is self.view

    def show(self) -> None:
        """Make `.grad` the view of the place."""
        if self.view.data_ptr() != self._address:
            self.view = self.tensor.detach()
        self.parameter.grad = self.view

    def yield_place(self, name: str) -> torch.Tensor | None:
        """Return the gradient that is to be copied to the place; None if it is there.

        A missing gradient counts as zeros.
        """
        gradient, view = self.parameter.grad, self.view
        if gradient is view and self.holds(gradient):
            return None
        if getrefcount(view) > self.references + 1:
            self._part()
        if gradient is None:
            self.tensor.zero_()
        elif gradient.layout is not torch.strided:
            raise NotSupported(
                f"backward: the gradient of {name!r} has the layout {gradient.layout}; build the "
                f"module with dense gradients, such as sparse=False"
            )
        return gradient

    def leave(self) -> None:
        """Give the parameter's gradient memory of its own: another parameter may get the place."""
        if self.holds(self.parameter.grad) or getrefcount(self.view) > self.references:
            self._part()

    def _part(self) -> None:
        """Give the view memory of its own: the program holds it, as after ``zero_grad()``.

        The next gradient would replace its elements otherwise.
        """
        if self.view.data_ptr() == self._address:
            self.view.data = self.tensor.clone()
            # Also a version of its own: backward refuses graphs with the view after later writes.
            self.tensor = self.tensor.data
            self.view = self.tensor.detach()

    def restore(self, gradient: torch.Tensor | None) -> None:
        """Give a parameter that no rank has used its old gradient, in the place or as ``grad``."""
        if gradient is not None and self.holds(self.parameter.grad):
            self.tensor.copy_(gradient)
        else:
            self.parameter.grad = gradient

    def give_back(self, *, as_view: bool) -> None:
        """Let `.grad` hold the reduced gradient: as the view, or as a copy."""
        if not as_view:
            if self.parameter.grad is None:
                self.parameter.grad = torch.empty_like(self.tensor)
            self.parameter.grad.detach().copy_(self.tensor)
        elif self.parameter.grad is not self.view:  # unused on this rank alone
            self.show()


class SlotGroup:
    """The slots of the parameters that share a bucket of the store, and are pushed together.

    A hook a parameter only counts: one copy and one push of a bucket take a tenth of the time of a
    copy and a push for each of its small parameters.

    Parameters
    ----------
    by_key : mapping of GradientSlot, by str
    sums : InPlace
        The push of all keys of `by_key`.

    Attributes
    ----------
    by_key : mapping of GradientSlot, by str
    sums : InPlace
    left : set of str
        The keys whose gradients the present pass has not given yet.
    undefined : set of str
        The keys whose gradients the present pass has given as None, which counts as zeros.
    pushed : bool
        Whether the present pass has pushed the bucket.
    """

    def __init__(self, by_key: Mapping[str, GradientSlot], sums: InPlace) -> None:
        self.by_key = by_key
        self.sums = sums
        self.left = {*by_key}
        self.undefined: set[str] = set()
        self.pushed = False

    def begin(self) -> None:
        """Begin a pass."""
        self.left.update(self.by_key)
        self.undefined.clear()
        self.pushed = False

    @property
    def given(self) -> set[str]:
        """Return the keys whose gradients the present pass has given."""
        return self.by_key.keys() - self.left

    def take_gradients(self, *, as_view: bool) -> None:
        """Copy each `.grad` to its place, unless it is there; make it a view of it if `as_view`.

        Raises
        ------
        UsageError
            When the program has taken a gradient before it was reduced.
        """
        slots = [*self.by_key.values()]
        gradients = [slot.parameter.grad for slot in slots]
        if not _are_new(slots, gradients):
            self._check_taken(gradients)
            found = [slot.yield_place(key) for key, slot in self.by_key.items()]
            pairs = zip(slots, found, strict=True)
            slots = [slot for slot, gradient in pairs if gradient is not None]
            gradients = [gradient for gradient in found if gradient is not None]
        if not slots:
            return
        with torch.no_grad():
            torch._foreach_copy_([slot.tensor for slot in slots], gradients)
        if as_view:
            for slot in slots:
                slot.show()

    def _check_taken(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Refuse a gradient that backward has given and `.grad` does not have."""
        none = {key for key, each in zip(self.by_key, gradients, strict=True) if each is None}
        taken = sorted(none - self.left - self.undefined)
        if taken:
            raise UsageError(
                f"backward: .grad of parameter {taken[0]!r} is None before its gradient was "
                f"reduced; a hook has taken it, such as to step an optimizer inside backward: make "
                f"the step after backward"
            )

    def multiply(self, factor: float) -> None:
        """Multiply the sums."""
        torch._foreach_mul_([slot.tensor for slot in self.by_key.values()], factor)

    def drop_gradients(self) -> None:
        """Leave each parameter without a gradient."""
        for slot in self.by_key.values():
            slot.parameter.grad = None

    def give_back(self, unused: Mapping[str, torch.Tensor | None], *, as_view: bool) -> None:
        """Let each `.grad` hold the sum, as the place's view or as a copy.

        A parameter that no rank has used gets its gradient before.
        """
        for key, slot in self.by_key.items():
            if key in unused:
                slot.restore(unused[key])
            else:
                slot.give_back(as_view=as_view)


_view_of, _layout_of = attrgetter("view"), attrgetter("layout")


def _are_new(slots: list[GradientSlot], gradients: list[Any]) -> bool:
    """Return whether all gradients are dense new tensors, and the program holds no view of a place.

    So they are in a pass after ``zero_grad()``.  The loops run in C, as each such pass makes them.
    """
    views = [*map(_view_of, slots)]
    held = max(map(getrefcount, views)) > slots[0].references + 1  # that of the list
    if held or type(None) in map(type, gradients) or any(map(is_, gradients, views)):
        return False
    return {*map(_layout_of, gradients)} == {torch.strided}
