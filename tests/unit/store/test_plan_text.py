"""The plan as a text: keys without C, and calls found prepared or checked anew."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.kernels.host import compiled

pytestmark = pytest.mark.limit(60)


def f(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def line(kv: Any, begin: str) -> str:
    """Return the rest of the only line of the plan that begins so; empty if there is none."""
    found = [each for each in kv.explain_plan().splitlines() if each.startswith(begin)]
    assert len(found) <= 1, found
    return found[0].removeprefix(begin).strip() if found else ""


@pytest.fixture
def kv() -> Any:
    with ncclkv.create("local") as store:
        store.init(["a", "b", "c", "d", "e"], [f(2) for _ in range(5)])
        yield store


def counted(kv: Any, calls: str) -> tuple[int, int, int]:
    """Return the numbers of calls found prepared, with new arrays, and checked anew."""
    found = re.match(
        r"(\d+) found prepared(?: \((\d+) of them with new arrays\))?, (\d+) checked anew",
        line(kv, f"{calls}:"),
    )
    return (int(found[1]), int(found[2] or 0), int(found[3])) if found else (0, 0, 0)


def test_no_calls_have_no_line(kv: Any) -> None:
    for calls in ("pushes", "pulls", "ends of groups"):
        assert line(kv, calls) == ""


def test_calls_are_counted(kv: Any) -> None:
    keys, values, outs = ["a", "b"], [f(2), f(2)], [f(2), f(2)]
    for _ in range(4):
        kv.push(keys, values)
        kv.pull(keys, outs)
    assert counted(kv, "pushes") == (3, 0, 1)
    assert counted(kv, "pulls") == (3, 0, 1)
    for _ in range(3):
        kv.pushpull(keys, [f(2), f(2)])
    assert counted(kv, "pushes") == (6, 3, 1)
    assert counted(kv, "pulls") == (6, 3, 1)
    for _ in range(3):
        kv.push("c", values[0])
        kv.pull("c", f(2))
    assert counted(kv, "pushes") == (8, 3, 2)
    assert counted(kv, "pulls") == (8, 5, 2)
    for _ in range(3):
        with kv.group():
            kv.push(keys, values)
            kv.pull(keys, outs)
    assert counted(kv, "ends of groups") == (2, 0, 1)


def test_a_refused_call_counts_as_checked_anew(kv: Any) -> None:
    kv.push("a", f(2))
    for wrong in (f(3), None, {}):
        with pytest.raises(ncclkv.KVStoreError):
            kv.push("a", wrong)
        with pytest.raises(ncclkv.KVStoreError):
            kv.push(["a", ["b"]], [wrong, wrong])
    assert counted(kv, "pushes") == (0, 0, 7)


class Sub(np.ndarray):
    pass


REASONS: dict[str, tuple[Any, str]] = {
    "first": (lambda: f(2), "no call of these keys was kept"),
    "subclass": (lambda: f(2).view(Sub), "test_plan_text.Sub is no plain array of NumPy or CuPy"),
    "scalar type": (lambda: f(2, dtype=">f4"), "an array lies in a bucket or is converted"),
}


@pytest.mark.parametrize("case", REASONS)
@pytest.mark.parametrize("several", [False, True])
def test_a_push_that_is_checked_anew_has_a_reason(kv: Any, case: str, several: bool) -> None:
    make, reason = REASONS[case]
    keys = ["a", "b", "c", "d", "e"]
    for _ in range(2):
        kv.push(*(keys, [make(), *(f(2) for _ in keys[1:])]) if several else ("a", make()))
    names = "'a', 'b', 'c' and 2 more" if several else "'a'"
    shown = line(kv, "pushes:")
    assert f"checked anew, the last of {names}: " in shown
    assert reason in shown
    assert counted(kv, "pushes")[2] == (1 if case == "first" else 2)


def test_a_pull_that_is_checked_anew_has_a_reason(kv: Any) -> None:
    kv.pull("a", f(2))
    assert line(kv, "pulls:").endswith("'a': a key has no bucket before the first push")
    kv.push("a", f(2))
    for _ in range(2):
        kv.pull(["a", "b"], [f(4)[::2], f(2)])
    assert "contiguous" in line(kv, "pulls:")
    same = f(2)
    kv.pull(["a", "b"], [same, same])
    for _ in range(2):
        kv.pull(["a", "b"], [f(2), f(2)])
    assert counted(kv, "pulls") == (1, 1, 5)
    kv.pull(["a", "b"], [f(2), f(2, dtype=np.float64)])
    assert line(kv, "pulls:").endswith("its arrays differ from those of the kept call")


def test_a_pull_into_another_bucket_is_checked_anew() -> None:
    with ncclkv.create("local", bucket_bytes=0) as kv:
        kv.init(["a", "b"], [f(2), f(2)])
        view = kv.grad_view("b")
        kv.pull("a", view)
        kv.pull("a", view)
        shown = line(kv, "pulls:")
    assert shown == "0 found prepared, 2 checked anew, the last of 'a': an array lies in a bucket"


def test_keys_without_c_are_named_once_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BUILT", True)
    monkeypatch.setattr(compiled, "active", True)
    with ncclkv.create("local") as kv:
        kv.init([f"h{n}" for n in range(2000)], [f(1, dtype=np.int16)] * 2000)
        kv.init("n", f(1, dtype=np.float16))
        kv.init(["c", "d"], [f(1, dtype=np.complex64)] * 2)
        kv.init("m", f(1), op="max")
        kv.init(["f", "g"], [f(1), f(1, dtype=np.float64)], op="avg")
        shown = [each for each in kv.explain_plan().splitlines() if each.startswith("without C")]
    rest = "C has sum and avg of floating-point numbers alone"
    assert shown == [
        f"without C: 'h0', 'h1', 'h2' and 1,997 more: NumPy makes sum of int16; {rest}",
        f"without C: 'c', 'd': NumPy makes sum of complex64; {rest}",
        f"without C: 'm': NumPy makes max of float32; {rest}",
    ]


@pytest.mark.parametrize("built", [False, True])
def test_a_store_without_c_names_all_keys(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BUILT", built)
    monkeypatch.setattr(compiled, "active", False)
    with ncclkv.create("local") as kv:
        kv.init(["a", "b", "c", "d"], [f(1), f(1), f(1, dtype=np.int8), f(1)])
        shown = line(kv, "without C:")
    assert shown.startswith("'a', 'b', 'c' and 1 more: ")
    assert ("NCCLKV_COMPILED=0" if built else "not built") in shown


def test_the_plan_names_three_keys_without_a_bucket() -> None:
    with ncclkv.create("local") as kv:
        kv.init(list(range(2000)), [f(1)] * 2000)
        shown = line(kv, "no bucket until the first push, grad_view or value:")
        assert shown == "0, 1, 2 and 1,997 more"
        kv.push(0, f(1))
        assert line(kv, "no bucket") == ""
