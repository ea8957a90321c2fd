"""Tensors of torch in repeated calls: checked by their form, and refused as in a first call."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import KVStoreError

torch = pytest.importorskip("torch")

KEYS = ["a", "b", "c", "d"]
SHAPES = {"a": (3, 2), "b": (6,), "c": (2, 3), "d": (6,)}

pytestmark = pytest.mark.limit(60)


def new(fill: float = 0, *, parameters: bool = False) -> list[Any]:
    """Return a tensor for each key."""
    made = [torch.full(SHAPES[key], float(fill)) for key in KEYS]
    return [torch.nn.Parameter(each) for each in made] if parameters else made


def opened() -> Any:
    kv = ncclkv.create("local")
    kv.init(KEYS, new())
    return kv


@pytest.mark.parametrize("parameters", [False, True])
@pytest.mark.parametrize("order", [1, -1], ids=["in order", "reversed"])
@pytest.mark.parametrize("same", [False, True], ids=["new", "same"])
def test_tensors_are_checked_once(
    checked: list[str], order: int, parameters: bool, same: bool
) -> None:
    keys = KEYS[::order]
    kept = new(), new(parameters=parameters)
    with opened() as kv:
        for step in range(1, 5):
            values, outs = kept if same else (new(), new(parameters=parameters))
            with torch.no_grad():
                for number, value in enumerate(values):
                    value.fill_(step + 10 * number)
            kv.push(keys, values[::order])
            before = [out._version for out in outs]
            kv.pull(keys, outs[::order])
            assert [out._version for out in outs] == [each + 1 for each in before]
            kv.push("b", values[1])
            kv.pull("d", outs[3])
            with kv.group():
                kv.push("c", values[2])
                kv.pull("c", outs[2])
            if step == 2:
                del checked[:]
            numbers = [out.detach().flatten()[0].item() for out in outs]
            assert numbers == [step, step + 10, step + 20, step + 30]
    assert checked == []


def test_a_kept_pull_keeps_no_tensor_alive() -> None:
    with opened() as kv:
        for step in range(3):
            kv.push(KEYS, new(step))
            outs = new()
            kv.pull(KEYS, outs)
            references = [weakref.ref(out) for out in outs]
            del outs
            gc.collect()
            assert [reference() for reference in references] == [None] * 4


def test_arrays_after_tensors_mark_no_tensor_as_written() -> None:
    with opened() as kv:
        kv.push(KEYS, new(1))
        outs = new()
        kv.pull(KEYS, outs)
        kv.pull(KEYS, outs)
        versions = [out._version for out in outs]
        for _ in range(3):
            kv.pull(KEYS, [np.zeros(SHAPES[key], np.float32) for key in KEYS])
            kv.pull(KEYS, [out.numpy() for out in new()])
        assert [out._version for out in outs] == versions


def test_a_backward_pass_refuses_what_a_kept_pull_has_written() -> None:
    with opened() as kv:
        weights = [torch.nn.Parameter(torch.ones(SHAPES[key])) for key in KEYS]
        for step in range(3):
            loss = (weights[1] * weights[1].exp()).sum()
            kv.push(KEYS, new(step))
            kv.pull(KEYS, weights)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()


WRONG: dict[str, Callable[[Any, list[Any]], Any]] = {
    "shape": lambda kv, tensors: torch.zeros(3, 2),
    "dtype": lambda kv, tensors: torch.zeros(2, 3, dtype=torch.int64),
    "narrow": lambda kv, tensors: torch.zeros(2, 3, dtype=torch.bfloat16),
    "complex": lambda kv, tensors: torch.zeros(2, 3, dtype=torch.complex64),
    "sparse": lambda kv, tensors: torch.zeros(2, 3).to_sparse(),
    "meta": lambda kv, tensors: torch.zeros(2, 3, device="meta"),
    "quantised": lambda kv, tensors: torch.quantize_per_tensor(
        torch.zeros(2, 3), 0.1, 0, torch.qint8
    ),
    "negated": lambda kv, tensors: torch.zeros(2, 3, dtype=torch.complex64).conj().imag,
    "strided": lambda kv, tensors: torch.ones(2, 6)[:, ::2],
    "repeated": lambda kv, tensors: torch.ones(1, 3).expand(2, 3),
    "overlap": lambda kv, tensors: tensors[0].reshape(2, 3),
    "part": lambda kv, tensors: torch.as_strided(tensors[1], (2, 3), (3, 1)),
    "array": lambda kv, tensors: np.ones((2, 3), np.float32),
    "number": lambda kv, tensors: 1.0,
    "gradient": lambda kv, tensors: torch.from_numpy(kv.grad_view("c")),
    "other gradient": lambda kv, tensors: torch.from_numpy(kv.grad_view("a")).reshape(2, 3),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("verb", ["push", "pull", "pushpull"])
@pytest.mark.filterwarnings("ignore")
def test_an_odd_tensor_is_treated_as_in_a_first_call(verb: str, wrong: str) -> None:
    first, later = (outcome(verb, wrong, before=steps) for steps in (0, 3))
    assert later == first


def outcome(verb: str, wrong: str, *, before: int) -> tuple[str, list[bytes]]:
    """Return the error of a call with an odd tensor, and all values after it."""
    with opened() as kv:
        kv.push(KEYS, new(7))
        kv.wait()
        for _ in range(before):
            kv.push(KEYS, new(7))
            kv.pull(KEYS, new())
            kv.pull("c", new()[2])
        tensors = new(9)
        tensors[2] = WRONG[wrong](kv, tensors)
        error = ""
        try:
            getattr(kv, verb)(KEYS, tensors)
            getattr(kv, verb)("c", tensors[2])
        except KVStoreError as caught:
            error = f"{type(caught).__name__}: {caught}"
        values = [array.tobytes() for array in kv.pull(KEYS)]
    return error, values


def test_empty_lists_and_empty_tensors() -> None:
    with ncclkv.create("local") as kv:
        kv.init(["a", "b"], [torch.ones(0), torch.ones(2)])
        for step in range(3):
            kv.push(["a", "b"], [torch.ones(0), torch.full((2,), float(step))])
            outs = [torch.ones(0), torch.ones(2)]
            kv.pull(["a", "b"], outs)
            assert outs[1].tolist() == [step, step]
            kv.push([], [])
            kv.pull([], [])
