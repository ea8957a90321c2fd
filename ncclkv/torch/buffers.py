"""Buffers: tensors of a module that follow rank 0, such as the statistics of BatchNorm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ncclkv.store.kvstore import KVStore

_SCRATCH_ELEMENTS = 1 << 20
"""Most elements that travel in one broadcast of tensors that have no key of their own."""


class Updater:
    """The updater of a store of gradients and buffers.

    The sum of a gradient stays in the bucket, of which `.grad` is a view.  Measured at 100 MB a
    rank on 2 and 3 ranks, a step takes 0.6 of the time of a step that pulls into the views.

    Attributes
    ----------
    replaced : set of str
        Keys whose sum replaces the value.
    """

    def __init__(self) -> None:
        self.replaced: set[str] = set()

    def update(self, key: str, total: Any, stored: Any) -> None:
        """Replace the value of a buffer by the sum."""
        if key in self.replaced:
            stored[...] = total


class Buffers:
    """The buffers of a module, which `follow` gives rank 0's values.

    Rank 0 pushes its values and the other ranks zeros.  The sum is a broadcast of all buffers
    in one collective a dtype, and needs no agreement of the ranks before it.

    Parameters
    ----------
    kv : KVStore
    buffers : mapping of str to torch.Tensor
    updater : Updater
        The updater of the store.
    """

    def __init__(self, kv: KVStore, buffers: Mapping[str, torch.Tensor], updater: Updater) -> None:
        self._kv = kv
        self._names, self._tensors = list(buffers), list(buffers.values())
        self._pushed = self._tensors if kv.rank == 0 else [*map(torch.zeros_like, self._tensors)]
        updater.replaced.update(self._names)
        if self._names:
            kv.init(self._names, self._tensors)
            kv.pull(self._names, out=self._tensors)

    def follow(self) -> None:
        """Give all ranks rank 0's values."""
        if self._names:
            self._kv.pushpull(self._names, self._pushed, out=self._tensors)


def follow_once(kv: KVStore, tensors: Iterable[torch.Tensor]) -> None:
    """Give tensors rank 0's values once, without keys of their own, which would take memory.

    All ranks pass tensors of the same shapes and dtypes, in the same order.
    """
    scratch: dict[torch.dtype, torch.Tensor] = {}
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        for part in flat.split(_SCRATCH_ELEMENTS):
            if tensor.dtype not in scratch:
                scratch[tensor.dtype] = torch.zeros(_SCRATCH_ELEMENTS, dtype=tensor.dtype)
            whole = scratch[tensor.dtype]
            whole[: len(part)] = part
            kv.broadcast(f"ncclkv.torch: {tensor.dtype}", whole, out=whole)
            part.copy_(whole[: len(part)])
        if flat.data_ptr() != tensor.data_ptr():  # a copy, since the tensor is not contiguous
            tensor.detach().copy_(flat.view_as(tensor))
