"""`DataParallel` on one rank: its errors, and the store it is given."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import NotSupported, OrderMismatch, UsageError

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from ncclkv.torch import DataParallel  # noqa: E402


@pytest.fixture
def model() -> Iterator[Any]:
    wrapped = DataParallel(nn.Linear(2, 1), "local")
    yield wrapped
    wrapped.close()


def frozen() -> Any:
    return nn.Linear(2, 1).requires_grad_(False)


def on_two_devices() -> Any:
    return nn.Sequential(nn.Linear(2, 1), nn.Linear(2, 1, device="meta"))


def synchronized() -> Any:
    return nn.Sequential(nn.Linear(2, 1), nn.SyncBatchNorm(1))


def sparse_buffer() -> Any:
    module = nn.Linear(2, 1)
    module.register_buffer("mask", torch.eye(2).to_sparse())
    return module


WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no module": (lambda: 3, UsageError, "int is not a torch.nn.Module"),
    "nothing to train": (frozen, UsageError, "no parameter of Linear requires a gradient"),
    "no parameters": (nn.ReLU, UsageError, "no parameter of ReLU requires a gradient"),
    "two devices": (on_two_devices, UsageError, "several devices, cpu, meta; move it to one"),
    "no data": (lambda: nn.Linear(2, 1, device="meta"), UsageError, "'weight' is on torch's meta"),
    "no shape": (lambda: nn.LazyLinear(1), UsageError, "'weight' of a lazy module has no shape"),
    "SyncBatchNorm": (synchronized, NotSupported, "'1' is a SyncBatchNorm, .*; use BatchNorm"),
    "sparse": (sparse_buffer, NotSupported, "the layout of 'mask' is torch.sparse_coo"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_module_is_refused(name: str) -> None:
    make, error, words = WRONG[name]
    with pytest.raises(error, match=words):
        DataParallel(make(), "local")


def test_a_store_that_cannot_serve_is_refused() -> None:
    with ncclkv.create("local") as kv:
        kv.init("w", torch.zeros(2))
        with pytest.raises(UsageError, match="the store has keys, 'w' the first"):
            DataParallel(nn.Linear(2, 1), kv)
    kv = ncclkv.create("local", update_on="root")
    with kv, pytest.raises(UsageError, match="updates on rank 0, .*update_on='every_rank'"):
        DataParallel(nn.Linear(2, 1), kv)
    with pytest.raises(UsageError, match="kvstore is a int; give a name or a store"):
        DataParallel(nn.Linear(2, 1), 3)


def test_a_store_that_is_given_keeps_its_options() -> None:
    with ncclkv.create("local", bucket_bytes=0) as kv:
        model = DataParallel(nn.Linear(2, 1), kv)
        assert model.kvstore is kv
        model(torch.ones(1, 2)).sum().backward()
        assert model.module.weight.grad.tolist() == [[1, 1]]


def test_another_thread_is_refused_by_name(model: Any) -> None:
    raised: list[BaseException] = []

    def work() -> None:
        try:
            model(torch.ones(1, 2)).sum().backward()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, name="loader")
    thread.start()
    thread.join()
    assert isinstance(raised[0], UsageError)
    assert "thread 'loader'" in str(raised[0])


def test_a_sparse_gradient_is_refused_by_name() -> None:
    with ncclkv.create("local") as kv:
        model = DataParallel(nn.Embedding(3, 2, sparse=True), kv)
        with pytest.raises(NotSupported, match="gradient of 'weight' has the layout"):
            model(torch.tensor([1])).sum().backward()


def test_conversions_that_keep_dtype_and_device_are_allowed(model: Any) -> None:
    assert model.to("cpu").float() is model
    for call in (model.double, lambda: model.to("meta"), model.half):
        with pytest.raises(UsageError, match=r"'weight' would become .*before you wrap it"):
            call()
    assert model.module.weight.dtype is torch.float32


def test_a_copy_of_the_wrapper_is_refused(model: Any) -> None:
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(UsageError, match=r"cannot be pickled or copied.*model\.module"):
            make(model)
    assert copy.deepcopy(model.module).weight.tolist() == model.module.weight.tolist()


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph:UserWarning")
def test_a_gradient_of_a_gradient_leaves_grad_without_a_graph(model: Any) -> None:
    loss = model(torch.ones(1, 2)).square().sum()
    torch.autograd.grad(loss, model.module.weight, create_graph=True)  # warns of nothing
    with pytest.warns(UserWarning, match=r"backward with create_graph=True: .* without a graph"):
        loss.backward(create_graph=True)
    assert not model.module.weight.grad.requires_grad


def test_the_text_of_a_wrapper_shows_the_module(model: Any) -> None:
    assert repr(model) == f"DataParallel({model.module})"


@pytest.mark.parametrize("inside", [True, False])
def test_compiled_modules(inside: bool) -> None:
    compiled = torch.compile if inside else lambda module, **_: module
    model = DataParallel(compiled(nn.Linear(2, 1, bias=False), backend="eager"), "local")
    call = model if inside else torch.compile(model, backend="eager")
    for _ in range(2):
        model.zero_grad()
        call(torch.ones(1, 2)).sum().backward()
        assert next(model.parameters()).grad.tolist() == [[1, 1]]
    model.close()


def test_autograd_grad_pushes_nothing(model: Any) -> None:
    out = model(torch.ones(1, 2)).sum()
    (gradient,) = torch.autograd.grad(out, [model.module.weight])
    assert gradient.tolist() == [[1, 1]]
    assert model.module.weight.grad is None


def test_a_skipped_step_leaves_no_gradients() -> None:
    with ncclkv.create("local", nonfinite="skip_step") as kv:
        model = DataParallel(nn.Linear(2, 1, bias=False), kv)
        model(torch.full((1, 2), float("inf"))).sum().backward()
        assert model.module.weight.grad is None
        model(torch.ones(1, 2)).sum().backward()
        assert model.module.weight.grad.tolist() == [[1, 1]]


def test_the_module_goes_on_after_close(model: Any) -> None:
    model(torch.ones(1, 2)).sum().backward()
    model.close()
    model.module(torch.ones(1, 2)).sum().backward()
    assert model.module.weight.grad.tolist() == [[2, 2]]


def test_a_loss_from_before_the_end_has_a_backward_pass_after_close(model: Any) -> None:
    loss = model(torch.ones(1, 2)).sum()
    model.close()
    loss.backward()
    assert model.module.weight.grad.tolist() == [[1, 1]]


def test_close_after_an_exception_in_backward(model: Any) -> None:
    def failing(_: Any) -> None:
        raise ZeroDivisionError

    model.module.weight.register_post_accumulate_grad_hook(failing)
    with pytest.raises(ZeroDivisionError):
        model(torch.ones(1, 2)).sum().backward()
    model.close()


def test_the_package_alone_does_not_import_torch() -> None:
    program = "import sys, ncclkv; assert 'torch' not in sys.modules; import ncclkv.torch"
    subprocess.check_call([sys.executable, "-c", program])


def test_parameters_of_another_wrapper_are_refused(model: Any) -> None:
    pair = nn.Sequential(nn.Linear(1, 2), model.module)
    for module, name in ((model, "weight"), (model.module, "weight"), (pair, "1.weight")):
        with pytest.raises(UsageError, match=rf"reduces .*'{name}' already; call its close\(\)"):
            DataParallel(module, "local")
    model.close()
    again = DataParallel(pair, "local")
    again(torch.ones(1, 1)).sum().backward()
    again.close()


def test_a_state_that_would_replace_the_parameters_is_refused(model: Any) -> None:
    weight, state = model.module.weight, {k: v + 1 for k, v in model.state_dict().items()}
    for arguments, named in (((state,), {"assign": True}), ((state, True, True), {})):
        with pytest.raises(UsageError, match="assign=True would replace the parameters"):
            model.load_state_dict(*arguments, **named)
    model.load_state_dict(state, strict=True, assign=False)
    assert model.module.weight is weight
    assert torch.equal(weight, state["weight"])


@pytest.mark.parametrize("present", [None, (1,)])
def test_a_buffer_that_changes_its_shape_is_refused_by_name(present: Any) -> None:
    norm = nn.BatchNorm1d(2)
    model = DataParallel(nn.Sequential(norm), "local")
    model(torch.ones(3, 2)).sum().backward()
    norm.running_mean = None if present is None else torch.zeros(present)
    with pytest.raises(UsageError, match=r"'0.running_mean' had .*\(2,\), .*=False") as raised:
        model(torch.ones(3, 2))
    assert f"has now {present};" in str(raised.value)
    model.close()


def test_a_buffer_that_changes_its_dtype_is_refused_by_name() -> None:
    norm = nn.BatchNorm1d(2)
    model = DataParallel(nn.Sequential(norm), "local")
    model(torch.ones(3, 2)).sum().backward()
    norm.running_mean = norm.running_mean.double()
    words = r"'0.running_mean' had torch.float32 .*has now torch.float64;"
    with pytest.raises(UsageError, match=words):
        model(torch.ones(3, 2))
    model.close()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("broadcast", [True, False])
def test_quantised_buffers_are_refused(broadcast: bool) -> None:
    module = nn.Linear(2, 1)
    module.register_buffer("codes", torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))
    with pytest.raises(NotSupported, match="'codes' is quantised; .*dequantize"):
        DataParallel(module, "local", broadcast_buffers=broadcast)


def test_own_keys_of_the_program_are_refused() -> None:
    model = DataParallel(torch.nn.Linear(2, 1), "local")
    kv = model.kvstore
    with pytest.raises(UsageError, match="key 'own' is not of the module .* another store"):
        kv.init("own", np.zeros(2))
    with pytest.raises(UsageError, match="key 'own' is not of the module .* another store"):
        kv.broadcast("own", np.zeros(2), np.zeros(2))
    model(torch.ones(1, 2)).sum().backward()
    assert model.module.weight.grad.tolist() == [[1.0, 1.0]]
    model.close()


def test_updaters_of_the_program_are_refused() -> None:
    model = DataParallel(torch.nn.Linear(2, 1), "local")
    for set_updater in (
        lambda: model.kvstore.set_updater(lambda *_: None),
        lambda: model.kvstore.set_optimizer(ncclkv.optimizer.create("sgd")),
    ):
        with pytest.raises(UsageError, match="no values to update, .*; create another store"):
            set_updater()
    model(torch.ones(1, 2)).sum().backward()
    assert model.module.weight.grad.tolist() == [[1.0, 1.0]]
    model.close()


def bare_passes(ranks: int, begin: Callable[[Any], object]) -> list[str]:
    """Return the warnings of a backward pass of the wrapped module alone, after `begin`."""

    def work() -> None:
        model = DataParallel(nn.Linear(2, 1), "threads")
        begin(model)
        for _ in range(2):
            model.module(torch.ones(1, 2)).sum().backward()
        model.close()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ncclkv.testing.run_ranks(ranks, work)
    assert {each.filename for each in caught} <= {__file__}, "warnings are at the program's line"
    return [str(each.message) for each in caught]


def test_training_the_module_in_place_of_the_wrapper_warns_once_a_rank() -> None:
    found = bare_passes(2, lambda model: None)
    assert len(found) == 2
    assert re.search(r"this backward pass gave gradients .* was never called", found[0])
    assert "give the wrapper to a trainer, not the module" in found[0]


def evaluated(model: Any) -> None:
    with torch.no_grad():
        model(torch.ones(1, 2))


def accumulated(model: Any) -> None:
    with model.no_sync():
        model(torch.ones(1, 2)).sum().backward()


def test_passes_of_the_module_after_the_wrappers_are_its_own() -> None:
    for begin in (accumulated, evaluated, lambda model: model(torch.ones(1, 2)).sum().backward()):
        assert bare_passes(2, begin) == []
    assert bare_passes(1, lambda model: None) == []


def test_a_rank_with_fewer_batches_names_join() -> None:
    def work() -> None:
        model = DataParallel(nn.Linear(2, 1), "dist_sync")
        for _ in range(2 + model.kvstore.rank):
            model(torch.ones(2, 2)).sum().backward()
        model.close()

    with pytest.raises(OrderMismatch, match=r"model\.join\(\) for torch"):
        ncclkv.testing.run_ranks(2, work)
