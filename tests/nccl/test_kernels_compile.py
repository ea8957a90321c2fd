"""Layer 3, without a device: NVRTC compiles every kernel, in every variant, to machine code."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from ncclkv.errors import LaunchError
from ncclkv.kernels.device.compiler import build
from ncclkv.kernels.device.sources import (
    ADD_TILES,
    CHECKSUM,
    COMBINE,
    COPY,
    DECODE,
    ENCODE,
    FOLD,
    FOLDER,
    MULTIPLY,
    NARROW,
    NONFINITE,
    NORMS,
    ORTHONORMALISE,
    PACK,
    PROJECT,
    PROJECT_BACK,
    SOURCES,
    TOP_ADD,
    TOP_BEFORE,
    TOP_BLOCKS,
    TOP_COUNT,
    TOP_DIGIT,
    TOP_TAKE,
    UNPACK,
    UPDATE,
    WIDEN,
    KernelSource,
)
from tests.harness.extent import some_or_all

ARCHITECTURES = some_or_all(["sm_90"], ["sm_80", "sm_90"])
EM_CUDA = 190
"""Code of NVIDIA's machines in the header of an ELF file."""


@pytest.fixture(scope="module")
def nvrtc() -> Any:
    cupy = pytest.importorskip("cupy", reason="layer 3 of the kernels needs CuPy: not installed")
    try:
        cupy.cuda.nvrtc.getVersion()
    except (OSError, RuntimeError) as error:
        pytest.skip(f"layer 3 of the kernels needs NVRTC, which cannot be loaded: {error}")
    return cupy.cuda.nvrtc


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program's machine code, and the assembly (PTX) that NVRTC made it of."""

    program: KernelSource
    code: bytes
    assembly: str


EACH = list(itertools.product(ARCHITECTURES, SOURCES))


@pytest.fixture(scope="module", params=EACH, ids=[f"{program}-{name}" for name, program in EACH])
def compiled(request: Any, nvrtc: Any) -> Compiled:
    """Compile a program once for all tests of the result."""
    architecture, program = request.param
    texts, machine_code = [], nvrtc.getCUBIN

    def both(handle: int) -> Any:
        texts.append(nvrtc.getPTX(handle))
        return machine_code(handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvrtc, "getCUBIN", both)
        code = build(program, architecture)
    (text,) = texts
    return Compiled(program, code, text if isinstance(text, str) else text.decode())


def test_layer_3_compiles_to_machine_code(compiled: Compiled) -> None:
    code = compiled.code
    assert code[:4] == b"\x7fELF"
    assert int.from_bytes(code[18:20], "little") == EM_CUDA
    # The kernel's own section, under the name that a launch requests.
    assert f".text.{compiled.program.name}\0".encode() in code


def test_layer_3_rounds_as_numpy_does(compiled: Compiled) -> None:
    """Check the operations: no fused multiply-add, no flush of subnormals, no approximation.

    In assembly the operations have their rounding in their names.
    """
    assert ".entry" in compiled.assembly
    for breach in ("fma.", ".ftz", ".approx", "div.full"):
        assert breach not in compiled.assembly


# One program of each file, or in a complete run all of them.
FILES = list({program.file or program.name: program for program in SOURCES}.values())


@pytest.mark.parametrize("program", some_or_all(FILES, SOURCES), ids=str)
def test_layer_3_an_argument_of_another_layout_does_not_compile(
    nvrtc: Any, program: KernelSource
) -> None:
    longer = np.dtype([("all", program.argument), ("more", np.uint64)])
    with pytest.raises(LaunchError, match="not the layout that the launch fills"):
        build(dataclasses.replace(program, argument=longer), "sm_90")


def test_layer_3_a_refusal_shows_the_log_and_what_to_do(nvrtc: Any) -> None:
    broken = dataclasses.replace(COPY, macros=COPY.macros | {"MAX_PIECES": "none_such"})
    with pytest.raises(LaunchError) as caught:
        build(broken, "sm_90")
    message = str(caught.value)
    assert message.startswith("kernel copy: NVRTC does not compile it for sm_90")
    assert "pip install" in message
    assert 'identifier "none_such" is undefined' in message


def test_every_source_has_a_program_and_each_program_a_name_of_its_own() -> None:
    sources = {path.stem for path in FOLDER.glob("*.cu")}
    assert {program.file or program.name for program in SOURCES} == sources
    assert len({str(program) for program in SOURCES}) == len(SOURCES)
    alone = {COPY, FOLD, CHECKSUM, TOP_BLOCKS, TOP_BEFORE, TOP_TAKE, TOP_ADD}
    matrices = {PROJECT, PROJECT_BACK, ORTHONORMALISE, ADD_TILES, MULTIPLY}
    tables = [COMBINE, UPDATE, NORMS, NONFINITE, NARROW, WIDEN]
    coded = [ENCODE, DECODE, PACK, UNPACK, TOP_COUNT, TOP_DIGIT]
    programs = {*alone, *(each for table in (*tables, *coded) for each in table.values())}
    assert set(SOURCES) == programs | matrices


def test_an_argument_fits_what_every_driver_takes() -> None:
    assert max(program.argument.itemsize for program in SOURCES) <= 4096
