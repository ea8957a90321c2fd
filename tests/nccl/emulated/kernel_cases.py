"""Test kernels, compiled for the host and launched there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.nccl.emulated import kernel_images
from tests.nccl.emulated.kernel_module import HostModule, KernelError

_TREE = """
    s[t] = x[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (unsigned step = blockDim.x / 2; step; step /= 2) {
        if (t < step) s[t] += s[t + step];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = s[0];
"""
# The sum of each block, with every form of shared memory.
SUMS = {
    "static": f"__shared__ double s[256]; {_TREE}",
    "dynamic": f"extern __shared__ double s[]; {_TREE}",
    "dynamic, aligned": (
        "extern __shared__ __align__(16) unsigned char memory[];"
        f" double* s = reinterpret_cast<double*>(memory); {_TREE}"
    ),
}


def module(
    text: str, options: Sequence[str] = (), expressions: Sequence[str] = (), **more: Any
) -> HostModule:
    """Return a source's kernels."""
    source = kernel_images.Source(text, options=options, expressions=expressions, **more)
    return HostModule(kernel_images.image(source))


def kernel(parameters: str, body: str) -> HostModule:
    """Return a kernel named ``k``, whose thread is called ``t``."""
    return module(
        f'extern "C" __global__ void k({parameters}) {{\n'
        f"    const unsigned t = threadIdx.x;\n    {body}\n}}\n"
    )


def results(out: str, body: str, threads: int = 1, **more: Any) -> np.ndarray:
    """Return the results of the threads of one block: ``out[t] = body``."""
    values = np.zeros(threads, out)
    kernel(f"{_c_type(values)}* out", f"out[t] = {body};").launch("k", 1, threads, [values], **more)
    return values


def refused(text: str, options: Sequence[str] = (), folder: Path | None = None) -> str:
    """Return the log of a source that does not compile."""
    with pytest.raises(kernel_images.Refused) as caught:
        kernel_images.image(kernel_images.Source(text, options=options), folder)
    return str(caught.value)


def failed(made: HostModule, *launch: Any, **more: Any) -> tuple[int, str]:
    """Return the code and the text of a failed launch of ``k``."""
    with pytest.raises(KernelError) as caught:
        made.launch("k", *launch, **more)
    return caught.value.code, str(caught.value)


def _c_type(values: np.ndarray) -> str:
    names = {"i4": "int", "u4": "unsigned", "i8": "long long", "u8": "unsigned long long",
             "f4": "float", "f8": "double"}  # fmt: skip
    return names[values.dtype.str[1:]]
