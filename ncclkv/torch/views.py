"""Views: torch tensors in the memory of a store."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ncclkv.errors import NotSupported, UsageError


def as_tensor(array: Any, dtype: torch.dtype, what: str) -> torch.Tensor:
    """Return a tensor of a store's array, without a copy.

    Parameters
    ----------
    array : ndarray
    dtype : torch.dtype
        The dtype of the array, as torch's.
    what : str
        The begin of an error's text.

    Raises
    ------
    UsageError
        When the array is in a GPU's memory.
    """
    if not isinstance(array, np.ndarray):
        raise UsageError(
            f"{what}: the module is in host memory and the store in a GPU's; give a store of host "
            f"memory, such as kvstore='dist_sync'"
        )
    if dtype is torch.bfloat16:  # torch takes no array of NumPy's bfloat16: view the bits
        return torch.from_numpy(array.view(np.int16)).view(dtype)
    return torch.from_numpy(array)


def check_on_host(name: str, tensor: torch.Tensor) -> None:
    """Refuse a parameter or buffer that is not a strided tensor in host memory.

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
    if tensor.device.type != "cpu":
        raise NotSupported(
            f"DataParallel: {name!r} is on {tensor.device}; this version takes modules in host "
            f"memory alone: move the module to the CPU, or push its gradients yourself inside "
            f"kv.overlap()"
        )
    if tensor.layout is not torch.strided:
        raise NotSupported(
            f"DataParallel: the layout of {name!r} is {tensor.layout}; give a dense tensor"
        )
