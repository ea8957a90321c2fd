"""Arrays of programs: what is drawn, and what NumPy makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.world import plan
from tests.world.arrays import payload, reduced
from tests.world.draw import DTYPES, OPS, draw, takes

KINDS = {(dtype, op) for dtype in DTYPES for op in (*OPS, "avg") if takes(dtype, op)}


def test_every_dtype_and_op_is_drawn() -> None:
    programs = [draw(seed, 2, 8) for seed in range(1000)]
    stores = [store for program in programs for store in program.stores]
    assert {(key.dtype, key.op) for store in stores for key in store.keys} == KINDS
    steps = [step for program in programs for step in program.steps]
    calls = [step for step in steps if isinstance(step, plan.AllReduce)]
    assert {step.dtype for step in calls} == set(DTYPES)
    assert {step.op for step in calls} == {*OPS, "avg"}


@pytest.mark.parametrize(("dtype", "op"), sorted(KINDS))
def test_sums_of_ranks_are_exact(dtype: str, op: str) -> None:
    key = plan.KeyPlan("a", (5,), dtype, op)
    given = [payload(key, rank, 6, item) for rank in range(4) for item in range(2)]
    wide = [each.astype({"f": "f8", "c": "c16"}.get(each.dtype.kind, each.dtype)) for each in given]
    assert np.array_equal(reduced(given, op, 4), reduced(wide, op, 4).astype(dtype))
    assert np.array_equal(reduced(given[::-1], op, 3), reduced(given, op, 3))


def test_reductions_are_those_of_a_store() -> None:
    small = np.array([100, -7], "i1")
    assert reduced([small, small], "sum", 2).tolist() == [-56, -14]
    assert reduced([small, small], "avg", 3).tolist() == [66, -4]
    bits = np.array([True, False]), np.array([True, True])
    assert reduced(bits, "sum", 2).tolist() == [True, True]
    assert reduced(bits, "prod", 2).tolist() == [True, False]
