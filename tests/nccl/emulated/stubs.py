"""Functions of CUDA and NCCL that are not emulated, as C functions that report their call.

The names come from the headers. Each stub is weak, so that an emulated function replaces it.
Functions whose result is not an error code have no stub, and must be emulated.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.nccl.emulated import compiler

UNOFFERED = re.compile(r"cuGetExportTable|cuGetProcAddress|cudaGetDriverEntryPoint")
"""Functions that return others; a runtime of another vendor begins with them."""


NOT_SUPPORTED = 801
"""The code cudaErrorNotSupported, equal to CUDA_ERROR_NOT_SUPPORTED."""


@dataclass(frozen=True)
class Interface:
    """A kind of functions: their header, type, names and the code of a refusal."""

    header: str
    result: str
    prefix: str
    code: int


RUNTIME = Interface("cuda_runtime_api.h", "cudaError_t", "cuda", NOT_SUPPORTED)
PROFILER = Interface("cuda_profiler_api.h", "cudaError_t", "cuda", NOT_SUPPORTED)
NCCL = Interface("nccl.h", "ncclResult_t", "nccl", 5)

BEGIN = r"""/* Made by stubs.py: functions that are not emulated. */
#include <stdio.h>

static int refuse(const char* name, int code)
{
    fprintf(stderr, "emulated: %s is not emulated\n", name);
    fflush(stderr);
    return code;
}

#define NOT_EMULATED(name, code) \
    __attribute__((weak)) int name(void) { return refuse(#name, code); }

"""


def source(
    interfaces: Sequence[Interface], include: Sequence[Path], driver: Collection[str] = ()
) -> str:
    """Return a C file with a stub for each function of the interfaces and of the driver."""
    refused = {
        name: interface.code for interface in interfaces for name in names(interface, include)
    }
    refused.update(dict.fromkeys(driver, NOT_SUPPORTED))
    return BEGIN + "".join(f"NOT_EMULATED({name}, {code})\n" for name, code in refused.items())


def names(interface: Interface, include: Sequence[Path]) -> list[str]:
    """Return the functions that a header declares, by the names that a linker sees."""
    text = compiler.preprocessed(f"#include <{interface.header}>\n", include)
    declared = rf"\b{interface.result}\s+(?:\w+\s+)*?({interface.prefix}[A-Z]\w*)\s*\("
    found = set(re.findall(declared, text))
    return sorted(name for name in found if not UNOFFERED.match(name))


def driver_names(cupy: Path) -> list[str]:
    """Return the driver's functions that CuPy loads, read from its source."""
    text = (cupy / "cupy_backends/cuda/api/_driver_extern.pxi").read_text()
    return [
        f"cu{name}".replace("{version}", "_v2") for name in re.findall(r"\.get\(f?'(.+?)'", text)
    ]
