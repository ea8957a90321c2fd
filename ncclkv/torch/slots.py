"""Slot: a parameter and the place of its gradient in a bucket of the store."""

from __future__ import annotations

from sys import getrefcount
from typing import Any

import torch

from ncclkv.errors import NotSupported
from ncclkv.torch.views import as_tensor


class Slot:
    """A parameter and its gradient's place in a bucket.

    The place has the parameter's layout, such as channels last, if it is the same on all ranks.
    Without it torch warns, and its optimizers are slower.

    Attributes
    ----------
    array : ndarray
        The place, as the store's array.
    tensor : torch.Tensor
        The place, as a tensor that only this object has.  `.grad` is another tensor of the same
        memory: programs, and ``Module.to``, replace its ``data``.
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
        self._view = self.tensor.detach()
        self._references = getrefcount(self._view)  # while the program holds none

    def holds(self, gradient: torch.Tensor | None) -> bool:
        """Return whether `.grad` is the view of the place."""
        return self._view.data_ptr() == self._address and gradient is self._view

    def _show(self) -> None:
        """Make `.grad` the view of the place."""
        if self._view.data_ptr() != self._address:
            self._view = self.tensor.detach()
        self.parameter.grad = self._view

    def take_gradient(self, name: str, *, as_view: bool) -> None:
        """Copy `.grad` to its place, unless it is there; make `.grad` a view of it if `as_view`."""
        gradient = self.parameter.grad
        if self.holds(gradient):
            return
        self._part(getrefcount(self._view) > self._references)
        if gradient is None:
            self.tensor.zero_()
            return
        if gradient.layout is not torch.strided:
            raise NotSupported(
                f"backward: the gradient of {name!r} has the layout {gradient.layout}; build the "
                f"module with dense gradients, such as sparse=False"
            )
        self.tensor.copy_(gradient.detach())
        if as_view:
            self._show()

    def leave(self) -> None:
        """Give the parameter's gradient memory of its own: another parameter may get the place."""
        shown = self.holds(self.parameter.grad)
        self._part(shown or getrefcount(self._view) > self._references)

    def _part(self, held: bool) -> None:
        """Give the view memory of its own if the program holds it, as after ``zero_grad()``.

        The next gradient would replace its numbers otherwise.
        """
        if held and self._view.data_ptr() == self._address:
            self._view.data = self.tensor.clone()
            # Also a version of its own: backward refuses graphs with the view after later writes.
            self.tensor = self.tensor.data
            self._view = self.tensor.detach()

    def restore(self, gradient: torch.Tensor | None) -> None:
        """Undo `take_gradient` for a parameter that no rank has used."""
        if gradient is not None and self.holds(self.parameter.grad):
            self.tensor.copy_(gradient)
        else:
            self.parameter.grad = gradient

    def give_back(self, *, as_view: bool) -> None:
        """Let `.grad` hold the reduced gradient: as the view, or as a copy."""
        gradient = self.parameter.grad
        if as_view:
            if not self.holds(gradient):  # unused on this rank alone
                self._show()
        elif gradient is None:
            self.parameter.grad = self.tensor.clone()
        else:
            gradient.detach().copy_(self.tensor)
