"""Arguments and attributes of torch's DDP: taken, ignored, or refused by name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import ncclkv
from ncclkv.errors import NotSupported, OrderMismatch, UnknownArgument, UsageError

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from ncclkv.torch import DataParallel, ddp  # noqa: E402

DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(DistributedDataParallel).parameters.items()
    if name != "module"
}


def wrapped(**named: Any) -> Any:
    return DataParallel(nn.Linear(2, 1, bias=False), "local", **named)


def reduced(model: Any) -> list[float]:
    model(torch.ones(1, 2)).sum().backward()
    gradient: list[float] = next(model.parameters()).grad.reshape(-1).tolist()
    model.close()
    return gradient


@pytest.fixture
def model() -> Iterator[Any]:
    made = wrapped()
    yield made
    made.close()


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_argument_of_ddp_has_its_default(name: str) -> None:
    assert reduced(wrapped(**{name: DEFAULTS[name]})) == [1, 1]


def test_all_defaults_of_ddp_at_once() -> None:
    assert reduced(wrapped(**DEFAULTS)) == [1, 1]


NOT_NEEDED = (
    "gradient_as_bucket_view",
    "static_graph",
    "skip_all_reduce_unused_params",
    "batched_grad_copy",
    "check_reduction",
)


@pytest.mark.parametrize("name", NOT_NEEDED)
def test_flags_that_are_not_needed_have_no_effect(name: str) -> None:
    assert name in ddp.DdpArguments.__annotations__
    assert reduced(wrapped(**{name: True}, dim=1)) == [1, 1]


REFUSED = {
    "process_group": "ncclkv.create('dist', comm=comm), with a communicator of mpi4py",
    "device_mesh": "ncclkv.create('dist', comm=comm), with a communicator of mpi4py",
    "mixed_precision": "torch.autocast()",
    "bucket_cap_mb_list": "give bucket_cap_mb",
    "delay_all_reduce_named_params": "leave it out",
    "param_to_hook_all_reduce": "leave it out",
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_without_their_effect_are_refused(name: str) -> None:
    with pytest.raises(NotSupported, match=f"DDP's argument '{name}'; ") as caught:
        wrapped(**{name: [object()]})
    assert REFUSED[name] in str(caught.value)


def test_the_size_of_buckets_in_mib() -> None:
    for size, want in ((10, 10 * 2**20), (0.5, 2**19), (0, 0), (None, 25 * 2**20)):
        model = wrapped(bucket_cap_mb=size)
        assert f"bucket_bytes {want}," in repr(model.kvstore)
        model.close()
    model = wrapped(bucket_bytes=1000)
    assert "bucket_bytes 1000," in repr(model.kvstore)
    model.close()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "two limits": ({"bucket_cap_mb": 1, "bucket_bytes": 5}, "bucket_bytes=5 and bucket_cap_mb=1 "),
    "no number": ({"bucket_cap_mb": "25"}, "bucket_cap_mb='25' is not a number of MiB; give 25"),
    "negative": ({"bucket_cap_mb": -1}, "bucket_cap_mb=-1 is not a number"),
    "infinite": ({"bucket_cap_mb": float("inf")}, "bucket_cap_mb=inf is not a number"),
    "a flag": ({"bucket_cap_mb": True}, "bucket_cap_mb=True is not a number"),
    "two devices": ({"device_ids": [0, 1]}, "device_ids=[0, 1], and a rank trains on one device"),
    "no list": ({"device_ids": 0}, "device_ids=0, and .*device_ids=[local_rank], or leave"),
    "no device": ({"device_ids": ["gpu"]}, "device_ids has 'gpu', which is not a device; give"),
    "a GPU": ({"device_ids": [3]}, "names cuda:3, and the module is on cpu; leave device_ids out"),
    "output": ({"output_device": 3}, "output_device names cuda:3, .*module.to('cuda:3')"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused(name: str) -> None:
    named, words = WRONG[name]
    with pytest.raises(UsageError, match=re.escape(words).replace(r"\.\*", ".*")):
        wrapped(**named)


def test_a_size_of_buckets_belongs_to_the_store() -> None:
    for named in ({"bucket_cap_mb": 1}, {"bucket_bytes": 2**20}):
        with (
            ncclkv.create("local") as kv,
            pytest.raises(UsageError, match=r"create\('local', bucket_bytes=1048576\)"),
        ):
            DataParallel(nn.Linear(2, 1), kv, **named)


def test_devices_of_a_module_on_a_gpu() -> None:
    first = torch.device("cuda:0")
    accepted: list[Any] = [[0], ["cuda:0"], [first], (0,), [], None]
    for ids in accepted:
        ddp.check({"device_ids": ids, "output_device": 0}, first)
    with pytest.raises(UsageError, match=r"device_ids names cuda:1, .* cuda:0; .*'cuda:1'"):
        ddp.check({"device_ids": [1]}, first)
    with pytest.raises(UsageError, match="output_device names cuda:1"):
        ddp.check({"device_ids": [0], "output_device": 1}, first)


def test_devices_in_the_place_of_the_store_are_named() -> None:
    for devices in ([0], torch.device("cuda:0")):
        with pytest.raises(UsageError, match=r"kvstore is a .*devices as device_ids=\[...\]"):
            DataParallel(nn.Linear(2, 1), devices)


def test_an_unknown_argument_names_the_nearest() -> None:
    with pytest.raises(UnknownArgument, match="did you mean 'find_unused_parameters'"):
        wrapped(find_unused_parameter=True)


def test_both_names_of_the_flag_for_buffers() -> None:
    for named, follows in (
        ({}, True),
        ({"broadcast_buffers": False}, False),
        ({"forward_sync_buffers": False}, False),
        ({"forward_sync_buffers": False, "broadcast_buffers": True}, False),
        ({"forward_sync_buffers": True, "broadcast_buffers": False}, True),
    ):
        model = wrapped(**named)
        assert model.broadcast_buffers is follows
        model.close()


def test_ddps_attributes(model: Any) -> None:
    assert (model.device, model.device_ids, model.output_device) == (
        torch.device("cpu"),
        None,
        None,
    )
    assert (model.find_unused_parameters, model.require_backward_grad_sync) == (False, True)
    assert model.weight is model.module.weight


def test_unused_parameters_can_be_allowed_later(model: Any) -> None:
    model.module.other = nn.Linear(1, 1, bias=False)
    x = torch.ones(1, 2)
    with pytest.raises(UsageError, match="find_unused_parameters=True"):
        model(x).sum().backward()
    model.find_unused_parameters = True
    model.zero_grad()
    model(x).sum().backward()
    assert model.module.weight.grad.tolist() == [[1, 1]]
    assert model.module.other.weight.grad is None


@pytest.mark.parametrize("syncs", [True, False])
def test_parameters_take_rank_0s_values_unless_the_program_sets_them(syncs: bool) -> None:
    def work() -> list[float]:
        layer, norm = nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1)
        kv = ncclkv.create("threads")
        nn.init.constant_(layer.weight, kv.rank + 1.0)
        norm.running_mean.fill_(kv.rank + 1.0)
        model = DataParallel(nn.Sequential(layer, norm).eval(), kv, init_sync=syncs)
        model(torch.ones(1, 1)).sum().backward()
        model.close()
        return [layer.weight.item(), norm.running_mean.item()]  # buffers follow rank 0 anyway

    assert ncclkv.testing.run_ranks(2, work) == [[1, 1], [1 if syncs else 2, 1]]


ABSENT = {
    "reducer": "model.kvstore.explain_plan()",
    "process_group": ".kvstore has .rank, .num_workers and .local_rank",
    "_get_ddp_logging_data": "model.kvstore.explain_plan()",
    "gradient_as_bucket_view": "gradient_as_view",
    "join_hook": "`with model.join():`",
    "in_features": "the wrapped module has it: use .module.in_features",
    "extra_repr_of": "'DataParallel' object has no attribute 'extra_repr_of'",
}


@pytest.mark.parametrize("name", ABSENT)
def test_an_attribute_that_is_absent_names_another(model: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'") as caught:
        getattr(model, name)
    assert ABSENT[name] in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_the_table_names_attributes_that_are_absent(model: Any) -> None:
    assert [name for name in ddp.ABSENT if hasattr(model, name)] == []


def test_join_takes_ddps_arguments(model: Any) -> None:
    with model.join(enable=False):
        model(torch.ones(1, 2)).sum().backward()
    assert model.module.weight.grad.tolist() == [[1, 1]]
    with (
        pytest.raises(NotSupported, match=r"model\.kvstore\.allgather\(len\(batches\)\)"),
        model.join(throw_on_early_termination=True),
    ):
        pass


def test_a_validation_by_the_wrapper_on_one_rank_names_the_module() -> None:
    def work() -> None:
        model = DataParallel(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)), "dist")
        model(torch.randn(4, 2)).sum().backward()
        if model.kvstore.rank == 0:
            model.eval()(torch.randn(4, 2))
        model.kvstore.barrier()

    with pytest.raises(OrderMismatch, match=r"call model\.module: .* but rank 1 called barrier"):
        ncclkv.testing.run_ranks(2, work)
