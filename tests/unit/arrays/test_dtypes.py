"""The dtypes that stores hold."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import numpy as np
import pytest

from ncclkv.arrays.dtypes import SUPPORTED, bfloat16, check_dtype, dtype_name, is_low_precision
from ncclkv.errors import DTypeMismatch, NotSupported

NUMPYS_OWN = [name for name in SUPPORTED if name != "bfloat16"]
REFUSED = ["U5", "S3", "O", "M8[s]", "m8[ns]", "V2", "V4", [("a", "f4"), ("b", "i4")]]


@pytest.mark.parametrize("name", NUMPYS_OWN)
def test_supported_dtypes_in_any_byte_order(name: str) -> None:
    native = np.dtype(name)
    for dtype in (native, native.newbyteorder("<"), native.newbyteorder(">")):
        checked = check_dtype(dtype, "init of key 3")
        assert checked == native
        assert checked.isnative
        assert dtype_name(checked) == name


def test_all_names_of_a_dtype_give_the_same_dtype() -> None:
    assert check_dtype(np.dtype("q"), "init") == check_dtype(np.dtype("l"), "init") == np.int64


def test_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes")
    dtype = np.dtype(ml_dtypes.bfloat16)
    assert check_dtype(dtype, "init of key 3") == dtype
    assert dtype_name(dtype) == "bfloat16"
    assert bfloat16("init of key 3") == dtype
    assert is_low_precision(dtype)
    with pytest.raises(DTypeMismatch, match="float8_e4m3fn"):
        check_dtype(np.dtype(ml_dtypes.float8_e4m3fn), "init of key 3")


def test_bfloat16_without_ml_dtypes_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **named: Any) -> Any:
        if name == "ml_dtypes":
            raise ModuleNotFoundError("No module named 'ml_dtypes'")
        return real(name, *rest, **named)

    monkeypatch.delitem(sys.modules, "ml_dtypes", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(NotSupported, match=r"push of key 3: .* with: pip install ml_dtypes$"):
        bfloat16("push of key 3")


def test_only_16_bit_floats_are_low_precision() -> None:
    assert [name for name in NUMPYS_OWN if is_low_precision(np.dtype(name))] == ["float16"]


@pytest.mark.parametrize("dtype", REFUSED, ids=str)
def test_other_dtypes_are_refused_by_name(dtype: Any) -> None:
    with pytest.raises(DTypeMismatch) as caught:
        check_dtype(np.dtype(dtype), "init of key 'w'")
    message = str(caught.value)
    assert message.startswith(f"init of key 'w': no store holds dtype {np.dtype(dtype)}; convert")
    assert message.endswith(", ".join(SUPPORTED))


def test_long_double_is_refused() -> None:
    if np.dtype(np.longdouble) == np.float64:
        pytest.skip("long double is float64 on this machine")
    with pytest.raises(DTypeMismatch, match=str(np.dtype(np.longdouble))):
        check_dtype(np.dtype(np.longdouble), "init of key 3")
