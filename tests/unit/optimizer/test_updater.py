"""`get_updater`: an optimizer as a function, without a store and as a store's updater."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ncclkv
from ncclkv.errors import DTypeMismatch, ShapeMismatch, UsageError
from ncclkv.optimizer import LARS, NAG, SGD, Adam, FactorScheduler, State, get_updater


def test_each_key_has_a_momentum_of_its_own() -> None:
    update = get_updater(SGD(learning_rate=0.5, momentum=0.5))
    a, b = np.zeros((2, 3)), np.zeros(2, np.float32)
    for _ in range(3):
        update("a", np.ones((2, 3)), a)
    update(7, np.ones(2, np.float32), b)
    assert a.tolist() == [[-2.125] * 3] * 2  # -0.5 - 0.75 - 0.875
    assert b.tolist() == [-0.5] * 2


def test_numbers_and_factors_are_read_at_each_call() -> None:
    sgd = SGD(learning_rate=1.0)
    update, weight = get_updater(sgd), np.zeros(1)
    sgd.learning_rate = 0.5
    sgd.lr_mult["w"] = 3.0
    update("w", np.ones(1), weight)
    assert weight[0] == -1.5
    sgd.lr_mult["w"] = float("nan")
    with pytest.raises(UsageError, match="lr_mult of key 'w' is nan"):
        update("w", np.ones(1), weight)
    assert weight[0] == -1.5


@pytest.mark.parametrize(
    "weight",
    [
        np.zeros((4, 6))[::2, ::3],
        np.zeros((3, 2), order="F"),
        np.zeros(()),
        np.zeros((0, 3)),
        np.zeros(3, ml_dtypes.bfloat16),
    ],
    ids=["strided", "fortran", "0-d", "empty", "bfloat16"],
)
def test_any_layout_is_updated_in_place(weight: Any) -> None:
    update = get_updater(SGD(learning_rate=0.5, momentum=0.5))
    for _ in range(2):
        update(0, np.ones(weight.shape, weight.dtype), weight)
    assert (weight == -1.25).all()


def test_torch_tensors_are_updated_in_place() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.zeros(3, requires_grad=True)
    get_updater(SGD(learning_rate=0.5))("w", torch.ones(3), weight.detach())
    assert weight.tolist() == [-0.5] * 3


def test_wrong_arrays_are_refused_with_the_key() -> None:
    update = get_updater(SGD())
    with pytest.raises(ShapeMismatch) as caught:
        update("w", np.ones(2), np.ones(3))
    assert str(caught.value) == (
        "update of key 'w': the gradient is float64 (2,), the weight float64 (3,); give a "
        "gradient of the weight's shape and dtype"
    )
    with pytest.raises(DTypeMismatch, match="key 'n' is int64, and SGD updates float16"):
        update("n", np.ones(2, np.int64), np.ones(2, np.int64))
    with pytest.raises(UsageError, match="update of key 'w'"):
        update("w", [1.0], np.ones(1))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="get_updater takes an Optimizer, not a str"):
        get_updater("sgd")  # type: ignore[arg-type]


def test_a_key_keeps_its_shape() -> None:
    update = get_updater(SGD(momentum=0.5))
    update("w", np.ones(2), np.ones(2))
    with pytest.raises(ShapeMismatch) as caught:
        update("w", np.ones(3), np.ones(3))
    assert str(caught.value) == (
        "update of key 'w': its momentum has shape (2,), the weight (3,); give the weight that "
        "the key had before, or another key"
    )


class Copying(SGD):
    """An optimizer whose state begins with the weights."""

    @property
    def states(self) -> tuple[State, ...]:
        return (State("copy", "float32", "weights"),)


def test_states_may_begin_with_the_weights() -> None:
    update = get_updater(Copying(momentum=0.5))
    update("w", np.zeros(2, np.float16), np.full(2, 8, np.float16))
    (copy,) = (x for name, x in update.state_dict().items() if name != "updates")
    assert (copy.dtype, copy.tolist()) == (np.float32, [4, 4])  # as momentum: halved once


def test_a_loaded_state_continues_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(6, 5))
    one = get_updater(SGD(learning_rate=0.1, momentum=0.9))
    weights = {"w": np.ones(5), 3: np.ones(5)}
    for gradient in gradients[:3]:
        for key, weight in weights.items():
            one(key, gradient, weight)
    other = get_updater(SGD(learning_rate=0.1, momentum=0.9))
    other.load_state_dict(one.state_dict())
    copies = {key: weight.copy() for key, weight in weights.items()}
    for gradient in gradients[3:]:
        for key in weights:
            one(key, gradient, weights[key])
            other(key, gradient, copies[key])
    for key, weight in weights.items():
        assert weight.tobytes() == copies[key].tobytes()
    assert other.state_dict()["updates"] == [["w", 6], [3, 6]]
    with pytest.raises(UsageError, match=r"load_state_dict: the items are .*state\.0\.momentum"):
        get_updater(SGD()).load_state_dict(one.state_dict())


def test_a_store_takes_it_as_updater(tmp_path: Any) -> None:
    def trained(load: bool) -> Any:
        with ncclkv.create("local") as kv:
            kv.init("w", np.zeros(3))
            kv.set_updater(get_updater(SGD(learning_rate=0.5, momentum=0.5)))
            if load:
                kv.load(tmp_path)
            kv.push("w", np.ones(3))
            if not load:
                kv.save(tmp_path)
            kv.push("w", np.ones(3))
            return kv.pull("w").tolist()

    assert trained(load=False) == [-1.25] * 3
    assert trained(load=True) == [-2.125] * 3


def test_schedules_count_as_mxnet_does() -> None:
    """Compare with MXNet 1.9.1, where the second key is updated in every second step."""
    halving = FactorScheduler(step=2, factor=0.5, base_lr=0.5)
    sgd = SGD(momentum=0.5, lr_scheduler=halving, begin_num_update=1)
    update, weights = get_updater(sgd), [np.ones(1), np.ones(1)]
    for number in range(8):
        update(0, np.ones(1), weights[0])
        if number % 2:
            update(1, np.ones(1), weights[1])
    assert [float(weight[0]) for weight in weights] == [-1.6953125, 0.1875]
    assert (sgd.num_update, sgd.learning_rate) == (9, 0.03125)
    other = SGD(momentum=0.5, lr_scheduler=halving, begin_num_update=1)
    get_updater(other).load_state_dict(update.state_dict())
    assert other.num_update == sgd.num_update


def test_a_master_copy_keeps_what_16_bits_would_lose() -> None:
    """Compare with MXNet 1.9.1 on float16."""
    for multi_precision, expected in ((True, 0.9990234375), (False, 1.0)):
        update = get_updater(SGD(learning_rate=1e-4, multi_precision=multi_precision))
        weight = np.ones(1, np.float16)
        for _ in range(10):
            update("w", np.ones(1, np.float16), weight)
        assert weight[0] == expected
    update = get_updater(SGD(learning_rate=1e-3, momentum=0.9, wd=0.1, multi_precision=True))
    weight, gradient = (np.array(x, np.float16) for x in ([1.0, 0.37], [0.3, -1.7]))
    for _ in range(10):
        update(0, gradient, weight)
    assert weight.tolist() == [0.9833984375, 0.43896484375]
    master = update.state_dict()["state.0.master"]
    np.testing.assert_allclose(master, [0.9834599494934082, 0.43888139724731445], rtol=2e-7)


def test_a_state_without_masters_starts_them_from_the_weights() -> None:
    plain = get_updater(SGD(learning_rate=1e-4, momentum=0.5))
    weight, gradient = np.ones(1, np.float16), np.ones(1, np.float16)
    plain("w", gradient, weight)
    wide = get_updater(SGD(learning_rate=1e-4, momentum=0.5, multi_precision=True))
    wide.load_state_dict(plain.state_dict())
    wide("w", gradient, weight)
    state = wide.state_dict()
    assert state["state.0.master"][0] == np.float32(1) + state["state.0.momentum"][0]
    wide.load_state_dict(state)
    with pytest.raises(UsageError, match="load_state_dict: the items are"):
        plain.load_state_dict(state)


def test_float32_weights_have_no_master() -> None:
    update = get_updater(SGD(multi_precision=True))
    update("w", np.ones(2, np.float32), np.ones(2, np.float32))
    assert list(update.state_dict()) == ["updates"]


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_weights_agree_with_torch(dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    weight = (rng.normal(size=8) + 1j * rng.normal(size=8)).astype(dtype).reshape(2, 4)
    theirs = torch.tensor(weight)
    other = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.01)
    update = get_updater(SGD(learning_rate=0.1, momentum=0.9, wd=0.01))
    mine = np.asfortranarray(weight)
    for _ in range(5):
        gradient = (rng.normal(size=(2, 4)) + 1j * rng.normal(size=(2, 4))).astype(dtype)
        theirs.grad = torch.tensor(gradient)
        other.step()
        update("w", gradient, mine)
    np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-5)


def test_adam_updates_complex_weights_as_pairs() -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=8) + 1j * rng.normal(size=8)
    pairs = weight.view(np.float64).copy()
    one, other = get_updater(Adam(learning_rate=0.1)), get_updater(Adam(learning_rate=0.1))
    for _ in range(3):
        gradient = rng.normal(size=8) + 1j * rng.normal(size=8)
        one("w", gradient, weight)
        other("w", gradient.view(np.float64), pairs)
    assert weight.view(np.float64).tobytes() == pairs.tobytes()
    with pytest.raises(DTypeMismatch, match="key 'w' is complex128, and NAG updates float16"):
        get_updater(NAG())("w", gradient, weight)


def test_norms_are_those_of_the_key() -> None:
    lars = LARS(learning_rate=1.0, eta=0.5)
    update, weight = get_updater(lars), np.full((2, 2), 2.0)
    update("w", np.ones((2, 2)), weight)
    assert weight.tolist() == [[1.0] * 2] * 2
    lars.lr_mult["w"] = 0.5
    update("w", np.ones((2, 2)), weight)
    assert weight.tolist() == [[0.75] * 2] * 2


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex64])
def test_gradients_of_one_call_are_clipped_together(dtype: Any) -> None:
    update = get_updater(SGD(learning_rate=1.0, rescale_grad=0.5, clip_global_norm=2.5))
    a, b = np.zeros((2, 2), dtype), np.zeros(1, dtype)
    for _ in range(2):
        update.update_all(["a", "b"], [np.full((2, 2), 3, dtype), np.full(1, 8, dtype)], [a, b])
    assert a.tolist() == [[-1.5] * 2] * 2
    assert b.tolist() == [-4]
    with pytest.raises(UsageError, match="update of key 'a': clip_global_norm is a bound .* call "):
        update("a", np.ones((2, 2), dtype), a)
    assert a.tolist() == [[-1.5] * 2] * 2


def test_gradients_are_clipped_as_by_torch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    gradients = [rng.standard_normal(size) for size in (5, 3000)]
    parameters = [torch.nn.Parameter(torch.zeros(each.size).double()) for each in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = torch.tensor(gradient)
    torch.nn.utils.clip_grad_norm_(parameters, 2.0)
    weights = [np.zeros(each.size) for each in gradients]
    get_updater(SGD(learning_rate=1.0, clip_global_norm=2.0)).update_all(
        ["a", "b"], gradients, weights
    )
    for weight, parameter in zip(weights, parameters, strict=True):
        # torch adds 1e-6 to the norm, which is about 55, and MXNet 1e-8.
        np.testing.assert_allclose(-weight, parameter.grad.numpy(), rtol=1e-7)
