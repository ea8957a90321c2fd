"""Buffers: tensors of a module that follow a rank, such as the statistics of BatchNorm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch

from ncclkv.errors import OrderMismatch, UsageError
from ncclkv.store.kvstore import KVStore
from ncclkv.store.sums import init_sums, settle
from ncclkv.torch.views import as_tensor
from ncclkv.tracebacks import public

_SCRATCH_BYTES = 1 << 22
"""Most bytes that travel in one collective of tensors that have no key of their own."""

_SOURCE = "ncclkv.torch: rank that buffers follow"
"""Key of the lowest rank that has not ended an uneven block."""


class ModuleBuffers:
    """The buffers of a module, which `follow` gives a rank's values.

    This rank pushes the bytes of its buffers and the other ranks zeros.  The sum is a broadcast in
    one collective of all buffers, which keeps each bit and needs no agreement of the ranks before.

    Parameters
    ----------
    kv : KVStore
    module : torch.nn.Module
    buffers : mapping of torch.Tensor, by str
        The buffers by their names in the module.
    """

    def __init__(
        self,
        kv: KVStore,
        module: torch.nn.Module,
        buffers: Mapping[str, torch.Tensor],
    ) -> None:
        self._kv = kv
        self._names = [*buffers]
        split = [name.rpartition(".") for name in self._names]
        self._places = [(module.get_submodule(owner), name) for owner, _, name in split]
        tensors = [*buffers.values()]
        self._kinds = [(each.shape, each.dtype) for each in tensors]
        # Bytes have no dtype: with it in the keys, ranks whose buffers have others raise.
        named = zip(self._names, tensors, strict=True)
        self._keys = [f"{name} of {each.dtype}" for name, each in named]
        if self._names:
            init_sums(kv, self._keys, [_bytes_of(each) for each in tensors])
            init_sums(kv, [_SOURCE], [np.int64(0)], "min")
            self._arrays = [kv.grad_view(key) for key in self._keys]
            self._source = kv.grad_view(_SOURCE)
            places = zip(self._arrays, self._names, tensors, strict=True)
            self._bytes = [
                as_tensor(array, torch.uint8, each.device, f"DataParallel: buffer {name!r}")
                for array, name, each in places
            ]
            self._copy_from(0, tensors)

    def tensors(self) -> list[torch.Tensor]:
        """Return the present buffers: a module may assign new tensors to them.

        Raises
        ------
        UsageError
            When a buffer no longer has its first shape and dtype.
        """
        found = [getattr(owner, name) for owner, name in self._places]
        for name, kind, tensor in zip(self._names, self._kinds, found, strict=True):
            if tensor is None or (tensor.shape, tensor.dtype) != kind:
                present = None if tensor is None else tuple(tensor.shape)
                if present == tuple(kind[0]):
                    present = tensor.dtype
                raise UsageError(
                    f"DataParallel: buffer {name!r} had {kind[1]} and the shape {tuple(kind[0])}, "
                    f"and has now {present}; give broadcast_buffers=False, or keep shape and dtype"
                )
        return found

    @public
    def follow(self, *, uneven: bool) -> None:
        """Give all ranks the values of the lowest rank: rank 0, unless `uneven`.

        In an uneven block the lowest rank that has not ended the block takes its place.
        """
        if not self._names:
            return
        try:
            self._copy_from(self._source_of(uneven=uneven), self.tensors())
        except OrderMismatch as error:
            raise OrderMismatch(
                f"DataParallel: buffers follow rank 0 at the first forward pass after each step, "
                f"so all ranks make this pass; for a pass of this rank alone, such as a "
                f"validation, call model.module: {error}",
                ranks=error.ranks,
            ) from error

    def _source_of(self, *, uneven: bool) -> int:
        """Return the rank whose values all ranks take; collective."""
        source = 0
        if uneven:
            self._source[...] = self._kv.rank
            self._kv.push(_SOURCE, self._source)
            self._kv.wait(_SOURCE)
            source = int(self._source)
        return source

    def _copy_from(self, source: int, tensors: list[torch.Tensor]) -> None:
        """Give tensors on all ranks the values of a rank."""
        if self._kv.rank == source:
            for place, tensor in zip(self._bytes, tensors, strict=True):
                place.copy_(_bytes_of(tensor))
        else:
            torch._foreach_zero_(self._bytes)
        self._kv.push(self._keys, self._arrays)
        settle(self._kv, self._keys)
        if self._kv.rank != source:
            for tensor, new in zip(tensors, self._bytes, strict=True):
                _replace(tensor, new)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes, with a last dimension for the bytes of an element.

    The bytes are a view of the tensor if it is contiguous, and a copy otherwise.
    """
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # Strides of dimensions of one element are arbitrary, and torch refuses to view such bytes.
    flat = whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)
    return flat.view(*tensor.shape, tensor.element_size())


def _replace(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """Replace the bytes of a buffer, unnoticed by autograd; write nothing if they are equal.

    A noticed write would end training: backward refuses a graph that has saved the buffer, such as
    that of another forward pass before.
    """
    # On a GPU a comparison would make the host wait for the device.
    if tensor.device.type == "cpu" and torch.equal(_bytes_of(tensor), new):
        return
    value = new.view(tensor.dtype).squeeze(-1)
    if tensor.is_inference():  # such a tensor has no version
        with torch.inference_mode():
            _copy(tensor, value)
    else:
        with torch.autograd._unsafe_preserve_version_counter(tensor):
            _copy(tensor, value)


def _copy(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Copy values to a tensor, whose elements may share memory as those of ``expand``."""
    target = tensor.detach()
    for dimension, stride in enumerate(target.stride()):
        if stride == 0 and target.shape[dimension] > 1:
            target = target.narrow(dimension, 0, 1)
            value = value.narrow(dimension, 0, 1)
    target.copy_(value)


def follow_once(kv: KVStore, tensors: Iterable[torch.Tensor], source: int = 0) -> None:
    """Give tensors a rank's values once, without keys of their own, which would take memory.

    All ranks pass tensors of the same shapes and dtypes, in the same order.  The bytes of the other
    ranks count as zeros, so the sum has the bits of the source.
    """
    arrays = [(each, _bytes_of(each)) for each in tensors]
    for group in _groups(array.view(-1) for _, array in arrays):
        sent = torch.cat(group)
        if kv.rank != source:
            sent.zero_()
        kv.allreduce(sent, out=sent)
        for part, value in zip(group, sent.split([*map(len, group)]), strict=True):
            part.copy_(value)
    for tensor, array in arrays:
        if array.data_ptr() != tensor.data_ptr():  # a copy, since the tensor is not contiguous
            _copy(tensor, array.view(tensor.dtype).squeeze(-1))


def _groups(arrays: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Split arrays of bytes into parts, and return groups of these that travel together."""
    group: list[torch.Tensor] = []
    room = _SCRATCH_BYTES
    for part in (part for each in arrays for part in each.split(_SCRATCH_BYTES)):
        if len(part) > room:
            yield group
            group, room = [], _SCRATCH_BYTES
        group.append(part)
        room -= len(part)
    if group:
        yield group
