"""Checks of values: what is taken, as which number, and what is refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from ncclkv.compress.declared import SCOPE, Check, above_0, at_least_1, count, finite, flag, share
from ncclkv.errors import UsageError

TAKEN: list[tuple[Check, Any, Any]] = [
    (above_0, 2, 2.0),
    (above_0, "2.0", 2.0),
    (above_0, " 5e-1 ", 0.5),
    (above_0, np.float32(0.1), float(np.float32(0.1))),
    (above_0, np.float16(0.5), 0.5),
    (above_0, np.int8(3), 3.0),
    (above_0, np.array(0.5), 0.5),
    (above_0, 1e-45, 1e-45),
    (above_0, 3.4e38, 3.4e38),
    (finite, -0.5, -0.5),
    (finite, 0, 0.0),
    (finite, 1e-300, 1e-300),
    (share, 1, 1.0),
    (share, 1e-9, 1e-9),
    (flag, np.True_, True),
    (count, np.uint8(0), 0),
    (at_least_1, np.int64(4), 4),
    (SCOPE.check, np.str_("node"), "node"),
]


@pytest.mark.parametrize(("check", "given", "value"), TAKEN)
def test_numbers_are_taken_as_python_s_own(check: Check, given: Any, value: Any) -> None:
    found = check("name", given)
    assert found == value
    assert type(found) is type(value)


NUMBER = "is not a finite number above 0 in float32, such as 0.5; give one"
REFUSED: list[tuple[Check, Any, str]] = [
    *((above_0, each, NUMBER) for each in
      (0, -0.0, -1, np.nan, np.inf, "nan", "inf", "0.5x", "", None, True, np.False_, [0.5], 1j,
       b"1", 1e-46, 1e39, 10**400, Decimal("0.5"), np.array([0.5]))),
    (finite, 3.5e38, "is not a finite number of float32, such as 0.5; give one"),
    (finite, np.nan, "is not a finite number of float32, such as 0.5; give one"),
    *((share, each, "is not a number above 0 and at most 1, such as 0.01; give one") for each in
      (0, 1.0000001, -0.5, np.nan, True, "all")),
    *((flag, each, "is not a bool; give True or False") for each in (1, "True", None)),
    *((count, each, "is not an int of 0 or more; give one") for each in (-1, 1.0, True, "1")),
    (at_least_1, 0, "is not an int of 1 or more; give one"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "given", "text"), REFUSED, ids=lambda each: repr(each)[:30])
def test_others_are_refused_with_what_is_allowed(check: Check, given: Any, text: str) -> None:
    with pytest.raises(UsageError) as error:
        check("name", given)
    assert str(error.value) == f"name={given!r} {text}"


@pytest.mark.parametrize("given", ["host", "Rank", None, 0])
def test_a_scope_is_one_of_two(given: Any) -> None:
    with pytest.raises(UsageError, match=r"name .* use one of rank, node"):
        SCOPE.check("name", given)


def test_an_int_that_cannot_be_printed_is_not_printed() -> None:
    with pytest.raises(UsageError, match=r"name is an int of 10,001 bits; give one of at most"):
        finite("name", 2**10_000)
