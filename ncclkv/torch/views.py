"""Views: torch tensors in the memory of a store."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ncclkv.errors import NotSupported, UsageError


def as_tensor(array: Any, dtype: torch.dtype, device: torch.device, what: str) -> torch.Tensor:
    """Return a tensor of a store's array, without a copy.

    Parameters
    ----------
    array : ndarray
        NumPy's, or CuPy's with its stream as torch's current stream.
    dtype : torch.dtype
        The dtype of the array, as torch's.
    device : torch.device
        The device of the module.
    what : str
        The begin of an error's text.

    Raises
    ------
    UsageError
        When the array is on another device.
    """
    on_host = isinstance(array, np.ndarray)
    # torch takes no array of NumPy's bfloat16: view the bits.
    bits = array.view(np.int16) if dtype is torch.bfloat16 else array
    tensor = torch.from_numpy(bits) if on_host else torch.from_dlpack(bits)
    if tensor.device != device:
        advice = "a store of host memory, such as kvstore='dist_sync'"
        if device.type != "cpu":
            advice = "a store of this GPU, such as kvstore='nccl'"
        raise UsageError(
            f"{what} is on {device}, and the store's memory on {tensor.device}; give {advice}"
        )
    return tensor.view(dtype)


def check_tensor(name: str, tensor: torch.Tensor) -> None:
    """Refuse a parameter or buffer that is not a strided tensor in host memory or on a CUDA GPU.

    Raises
    ------
    NotSupported, UsageError
    """
    if torch.nn.parameter.is_lazy(tensor):
        raise UsageError(
            f"DataParallel: {name!r} of a lazy module has no shape yet; call the module with a "
            f"batch before you wrap it"
        )
    if tensor.device.type == "meta":
        raise UsageError(
            f"DataParallel: {name!r} is on torch's meta device and has no data; give the module "
            f"its data first, such as by to_empty(device='cpu')"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise NotSupported(
            f"DataParallel: {name!r} is on {tensor.device}; this version takes modules in host "
            f"memory and on GPUs of CUDA: move the module there"
        )
    if tensor.layout is not torch.strided:
        raise NotSupported(
            f"DataParallel: the layout of {name!r} is {tensor.layout}; give a dense tensor"
        )
    if tensor.is_quantized:
        raise NotSupported(
            f"DataParallel: {name!r} is quantised; give the tensor's int_repr() and its scale as "
            f"buffers, or its dequantize()"
        )
