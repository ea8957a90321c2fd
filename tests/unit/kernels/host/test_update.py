"""Steps of stochastic gradient descent on flat arrays in host memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from ncclkv.kernels.base import Kernels
from ncclkv.kernels.host import HostKernels
from ncclkv.kernels.host.chunks import CHUNK_BYTES
from tests.sgd_steps import rows, segments_of, sgd

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")

KERNELS: Kernels = HostKernels()
SIZES = [0, 1, CHUNK_BYTES // 8 - 1, CHUNK_BYTES // 4, 2 * CHUNK_BYTES // 4 + 3]
PLAIN: dict[str, Any] = {
    "learning_rate": 0.5,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "rescale": 1.0,
    "clip": None,
}


def _formula(w: np.ndarray, g: np.ndarray, m: np.ndarray, step: dict[str, Any]) -> None:
    """Apply MXNet's formula in float64, in place."""
    g = step["rescale"] * g
    if step["clip"] is not None:
        g = np.maximum(np.minimum(g, step["clip"]), -step["clip"])
    g = g + step["weight_decay"] * w
    m[:] = step["momentum"] * m - step["learning_rate"] * g
    w += m


STEPS = {
    "plain": PLAIN,
    "rescaled": PLAIN | {"rescale": 0.25},
    "clipped": PLAIN | {"clip": 2.0, "rescale": 2.0},
    "decayed": PLAIN | {"weight_decay": 0.25},
    "momentum": PLAIN | {"momentum": 0.5},
    "all": {
        "learning_rate": 0.5,
        "momentum": 0.5,
        "weight_decay": 0.25,
        "rescale": 0.5,
        "clip": 1.5,
    },
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_steps_are_exact_on_small_binary_fractions(dtype: str, step: dict[str, Any]) -> None:
    for size in SIZES:
        weights, gradients = _start(size)
        w, g = weights.astype(dtype), gradients.astype(dtype)
        m = np.zeros(size, dtype) if step["momentum"] else None
        reference = np.zeros(size)
        for _ in range(3):
            sgd(KERNELS, w, g, m, **step)
            _formula(weights, gradients, reference, step)
            assert np.array_equal(w, weights)
            assert m is None or np.array_equal(m, reference)
            reference *= bool(step["momentum"])
        assert np.array_equal(g, gradients), "gradients were written"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_16_bit_weights_are_updated_in_float32_and_rounded_once(
    dtype: str, step: dict[str, Any]
) -> None:
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes", reason="bfloat16 needs it").bfloat16
    step = step | {"learning_rate": 0.1, "rescale": step["rescale"] / 3}
    for size in SIZES:
        w, g = (x.astype(dtype) for x in _start(size))
        m = np.zeros(size, np.float32) if step["momentum"] else None
        for _ in range(3):
            wide, momenta = w.astype(np.float32), None if m is None else m.copy()
            before = g.copy()
            sgd(KERNELS, w, g, m, **step)
            sgd(KERNELS, wide, g.astype(np.float32), momenta, **step)
            assert np.array_equal(w, wide.astype(dtype))
            assert m is None or np.array_equal(m, momenta)
            assert np.array_equal(g, before), "gradients were written"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_a_master_is_updated_and_the_weights_are_its_rounding(
    dtype: str, step: dict[str, Any]
) -> None:
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes", reason="bfloat16 needs it").bfloat16
    step = step | {"learning_rate": 1e-4, "rescale": step["rescale"] / 3}
    for size in SIZES:
        w, g = (x.astype(dtype) for x in _start(size))
        m = np.zeros(size, np.float32) if step["momentum"] else None
        master, before = w.astype(np.float32), g.copy()
        wide, momenta = master.copy(), None if m is None else m.copy()
        for _ in range(3):
            sgd(KERNELS, w, g, m, master=master, **step)
            sgd(KERNELS, wide, g.astype(np.float32), momenta, **step)
            assert np.array_equal(master, wide)
            assert np.array_equal(w, wide.astype(dtype))
            assert m is None or np.array_equal(m, momenta)
            assert np.array_equal(g, before), "gradients were written"


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_float64_is_computed_in_float64(momentum: float) -> None:
    rng = np.random.default_rng(1)
    w, g = rng.standard_normal((2, 1000))
    step = PLAIN | {"learning_rate": 0.1, "momentum": momentum, "weight_decay": 1e-3, "clip": 1.2}
    expected, reference = w.copy(), np.zeros(1000)
    m = np.zeros(1000) if momentum else None
    for _ in range(5):
        sgd(KERNELS, w, g, m, **step)
        _formula(expected, g, reference, step)
        reference *= bool(momentum)
    np.testing.assert_allclose(w, expected, rtol=0, atol=1e-14)


def test_decay_is_outside_the_clipping() -> None:
    w = np.array([8.0])
    sgd(KERNELS, w, np.array([100.0]), None, **PLAIN | {"clip": 1.0, "weight_decay": 0.5})
    assert w[0] == 8 - 0.5 * (1 + 4)


def test_a_change_of_learning_rate_leaves_the_momentum_as_it_is() -> None:
    w, m = np.zeros(1), np.zeros(1)
    sgd(KERNELS, w, np.ones(1), m, **PLAIN | {"momentum": 0.5, "learning_rate": 1.0})
    sgd(KERNELS, w, np.zeros(1), m, **PLAIN | {"momentum": 0.5, "learning_rate": 0.0})
    assert (m[0], w[0]) == (-0.5, -1.5)


def test_scalars_are_read_when_the_update_runs() -> None:
    scalars, segments = np.zeros((1, 5)), segments_of(0, 5)
    for number in (0.1, 1 / 3):
        (w, v), g = np.ones((2, 5), np.float32), np.arange(5, dtype=np.float32)
        scalars[:] = rows(**PLAIN | {"learning_rate": number})
        KERNELS.update("sgd", w, g, (), scalars, segments)
        sgd(KERNELS, v, g, None, **PLAIN | {"learning_rate": number})
        assert w.tobytes() == v.tobytes()


def test_each_segment_has_its_row_and_other_elements_stay() -> None:
    w, g = np.zeros(9, np.float32), np.ones(9, np.float32)
    segments = segments_of(1, 3, 3, 7)
    sgd(KERNELS, w, g, None, segments=segments, lr_mult=(1, 5, 2), wd_mult=(1, 1, 1), **PLAIN)
    assert w.tolist() == [0, -0.5, -0.5, -1, -1, -1, -1, 0, 0]


def test_small_steps_on_float16_round_away() -> None:
    # 1 - 1e-4 is 1 in float16: only weights in float32 can add such steps.
    w = np.ones(1, np.float16)
    for _ in range(10):
        sgd(KERNELS, w, np.ones(1, np.float16), None, **PLAIN | {"learning_rate": 1e-4})
    assert w[0] == 1


def test_nan_gradients_reach_the_weights_even_when_clipped() -> None:
    w = np.zeros(2, np.float32)
    g = np.array([np.nan, np.inf], np.float32)
    sgd(KERNELS, w, g, None, **PLAIN | {"clip": 1.0})
    assert np.isnan(w[0])
    assert w[1] == -0.5


def test_settings_for_floating_point_errors_have_no_effect() -> None:
    w = np.zeros(1, np.float16)
    with np.errstate(all="raise"):
        sgd(KERNELS, w, np.full(1, 60000, np.float16), None, **PLAIN | {"rescale": 4.0})
    assert w[0] == -np.inf


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nothing_as_large_as_the_weights_is_allocated(dtype: str) -> None:
    m, master = np.zeros((2, 64 * CHUNK_BYTES // 4), np.float32)
    w, g = np.zeros((2, m.size), dtype)
    tracemalloc.start()
    try:
        sgd(KERNELS, w, g, m, master=master if dtype == "float16" else None, **STEPS["all"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * CHUNK_BYTES


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_agrees_with_torch_at_a_constant_learning_rate(momentum: float) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rng = np.random.default_rng(2)
    w = rng.standard_normal(100)
    parameter = torch.nn.Parameter(torch.tensor(w))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=momentum, weight_decay=0.01)
    m = np.zeros(100) if momentum else None
    step = PLAIN | {"learning_rate": 0.1, "momentum": momentum, "weight_decay": 0.01}
    for _ in range(10):
        g = rng.standard_normal(100)
        parameter.grad = torch.tensor(g)
        optimizer.step()
        sgd(KERNELS, w, g, m, **step)
    np.testing.assert_allclose(w, parameter.detach().numpy(), rtol=0, atol=1e-13)


def _start(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return weights and gradients of few bits and both signs."""
    return (np.arange(size) % 9 - 4) / 4, (np.arange(size) % 7 - 3) * 1.0
