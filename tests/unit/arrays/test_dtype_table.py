"""The table of dtypes: each row agrees with NumPy, and a new row reaches every user."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from ncclkv.arrays import dtype_table
from ncclkv.arrays.dtype_table import BY_NAME, TABLE, DTypeInfo
from ncclkv.arrays.dtypes import named

NEW_ROW = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("ncclkv.arrays.dtype_table", sys.argv[1])
table = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = table  # before its users are loaded
spec.loader.exec_module(table)
row = table.DTypeInfo(
    "float8_e5m2", "f", 1, "__nv_fp8_e5m2", 11,
    working="float32", stored_as=("uint8", 1), exponent=0x7C, cuda_header="<cuda_fp8.h>",
    package="ml_dtypes",
)
table.TABLE += (row,)
table.BY_NAME[row.name] = row

import ml_dtypes
import numpy as np
from ncclkv.arrays import dtypes
from ncclkv.checkpoint import tensors
from ncclkv.comm.nccl.dtypes import movement
from ncclkv.comm.shm import header
from ncclkv.kernels.device import sources
from ncclkv.kernels.host import finite
from ncclkv.kernels.host.chunks import working_dtype

new = np.dtype(ml_dtypes.float8_e5m2)
"""

USERS = {
    "stores": "dtypes.check_dtype(new, 'init') == new and row.name in dtypes.SUPPORTED",
    "low precision": "dtypes.is_low_precision(new)",
    "working dtype": "working_dtype(new) == working_dtype(new, 'avg') == np.float32",
    "NCCL": "movement(new).dtype == 11 and movement(new).factor == 1",
    "node memory": "header._number(new) == len(table.TABLE) - 1",
    "checkpoints": "tensors._stored(np.ones(3, new)).dtype == np.uint8",
    "read checkpoints": "tensors.tensor([3], row.name).dtype == new",
    "search": "all_finite(1.0) and not all_finite(np.inf) and not all_finite(np.nan)",
    "CUDA, sums": "sources.COMBINE[row.name, 'sum'].macros['WORKING'] == 'float'",
    "CUDA, header": "sources.COMBINE[row.name, 'max'].macros['HEADER'] == '<cuda_fp8.h>'",
    "CUDA, updates": "sources.UPDATE['sgd', 0, row.name].macros['ELEMENT'] == '__nv_fp8_e5m2'",
    "CUDA, search": "sources.NONFINITE[row.name].macros['EXPONENT'] == '0x7c'",
}

SEARCH = """
def all_finite(number):
    flag = np.zeros(1, np.int32)
    finite.find_nonfinite(np.array([1, number, 2], new), flag)
    return not flag[0]
"""


def numpys(row: DTypeInfo) -> np.dtype:
    """Return the dtype of a row, as NumPy has it."""
    if row.package:
        pytest.importorskip(row.package, reason=f"{row.name} is of {row.package}")
    return named(row.name, "test")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_rows_agree_with_numpy(row: DTypeInfo) -> None:
    dtype = numpys(row)
    assert (dtype.name, dtype.kind, dtype.itemsize) == (row.name, row.kind, row.itemsize)
    for form in filter(None, (row.moved_as, row.stored_as)):
        name, count = form
        assert np.dtype(name).itemsize * count == row.itemsize
    assert {row.working, row.averaged_in} <= {"", *BY_NAME}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_nccl_moves_each_dtype_in_one_of_two_forms(row: DTypeInfo) -> None:
    assert (row.nccl is None) != (row.moved_as is None)
    if row.moved_as is not None:
        assert BY_NAME[row.moved_as[0]].nccl is not None


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_masks_are_the_bits_of_infinity(row: DTypeInfo) -> None:
    dtype = numpys(row)
    assert (row.exponent is not None) == (row.kind in "fV")
    if row.exponent is not None:
        infinity = np.array(np.inf, dtype).view(f"u{row.itemsize}")
        assert int(infinity) == row.exponent


def test_kind_and_size_tell_low_precision() -> None:
    pairs: dict[tuple[str, int], str] = {}
    for row in TABLE:
        assert pairs.setdefault((row.kind, row.itemsize), row.working) == row.working


def test_a_new_row_reaches_every_user() -> None:
    pytest.importorskip("ml_dtypes", reason="the new row is of ml_dtypes")
    checks = "".join(f"\nif not ({check}): print({user!r})" for user, check in USERS.items())
    program = [sys.executable, "-c", NEW_ROW + SEARCH + checks, dtype_table.__file__]
    done = subprocess.run(program, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")
