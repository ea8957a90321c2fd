"""Names and habits of other libraries in programs that were not ported yet."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ncclkv
from ncclkv import optimizer
from ncclkv.errors import DTypeMismatch, UsageError


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("ncclkv.kv.create", "ncclkv.create('dist_sync') replaces mx.kv.create('dist_sync')"),
        ("ncclkv.kvstore.create", "ncclkv.create('dist_sync') replaces mx.kv.create('dist_sync')"),
        ("kv.get_type()", "read kv.type"),
        ("kv.size", "read kv.num_workers"),
        ("ncclkv.UsageError", "errors are in ncclkv.errors"),
        ("kv.world_size", "read kv.num_workers"),
        ("kv.all_reduce(3)", "call kv.allreduce(x, out=x)"),
        ("kv.Allreduce(3, 4)", "call kv.allreduce(x, out=y)"),
        ("kv.Get_rank()", "read kv.rank"),
        ("kv.bcast(3)", "call kv.broadcast_object(x)"),
        ("kv.send(3, 1)", "there are no messages between two ranks; mpi4py's MPI.COMM_WORLD sends"),
        ("kv.items()", "call kv.pull(kv.keys())"),
        ("kv.all_gather_object(3)", "call kv.allgather_object(x)"),
        (
            "ncclkv.init()",
            "no call is needed; a store, kv = ncclkv.create('dist'), joins the ranks",
        ),
        (
            "ncclkv.init_process_group('gloo')",
            "no call is needed; kv = ncclkv.create('dist_sync') joins the ranks",
        ),
        ("ncclkv.rank()", "read it from a store: ncclkv.create('dist').rank"),
        ("ncclkv.size()", "read it from a store: ncclkv.create('dist').num_workers"),
        ("ncclkv.allreduce(1)", "it is a verb of a store, kv = ncclkv.create('dist')"),
        (
            "ncclkv.DistributedOptimizer(3)",
            "wrap the module: ncclkv.torch.DataParallel(model)",
        ),
        (
            "kv.get_num_dead_node(2)",
            "when a rank dies, the calls of the other ranks raise RankLost",
        ),
        (
            "kv._send_command_to_servers(0, '')",
            "there are no servers; set_updater and set_optimizer reach all ranks",
        ),
        (
            "ncclkv.optimizer.DCASGD()",
            "MXNet's own runs on a store of ncclkv.mxnet.create('dist_sync') by "
            "kv.set_updater(mx.optimizer.get_updater(optimizer))",
        ),
    ],
)
def test_the_error_names_what_to_type(line: str, advice: str) -> None:
    with (
        ncclkv.create("local") as kv,
        pytest.raises(AttributeError, match=rf"has no attribute '\w+'; {re.escape(advice)}"),
    ):
        eval(line, {"ncclkv": ncclkv, "kv": kv})


def test_other_names_have_pythons_own_error() -> None:
    with ncclkv.create("local") as kv:
        for where, owner in (
            (ncclkv, "module 'ncclkv'"),
            (optimizer, "module 'ncclkv.optimizer'"),
            (kv, "'KVStore' object"),
        ):
            with pytest.raises(AttributeError) as raised:
                where.pul  # noqa: B018
            assert str(raised.value) == f"{owner} has no attribute 'pul'"
            assert (raised.value.name, raised.value.obj) == ("pul", where)
            assert not hasattr(where, "pul")


@pytest.mark.parametrize("line", ["import ncclkv.mxnet", "import ncclkv; ncclkv.mxnet.create()"])
@pytest.mark.parametrize(
    ("stand_in", "reason"),
    [
        ("raise ImportError('none')", "ImportError: none"),
        ("import numpy; numpy.no_such_name", "AttributeError: module 'numpy' has no attribute"),
    ],
)
def test_without_mxnet_the_error_names_the_installation(
    tmp_path: Path, line: str, stand_in: str, reason: str
) -> None:
    (tmp_path / "mxnet.py").write_text(stand_in)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {line}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: ncclkv.mxnet: MXNet cannot be imported ({reason}")
    assert "pip install 'ncclkv[mxnet]'" in last


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("DDP", "ncclkv.torch.DataParallel(model) takes its arguments"),
        ("DistributedDataParallel", "ncclkv.torch.DataParallel(model) takes its arguments"),
        (
            "FSDP",
            "every rank has all weights of a module; ncclkv.torch.DataParallel(model) reduces "
            "their gradients",
        ),
    ],
)
def test_the_wrapper_of_torch_names_ours(name: str, advice: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(AttributeError) as raised:
        getattr(ncclkv.torch, name)
    assert str(raised.value) == f"module 'ncclkv.torch' has no attribute '{name}'; {advice}"


@pytest.mark.parametrize(
    ("name", "arguments", "advice"),
    [
        ("dcasgd", {}, "there is no optimizer 'dcasgd'; MXNet's own runs on a store of"),
        ("ccSGD", {}, "there is no optimizer 'ccSGD'; SGD is the same"),
        ("adam", {"lazy_update": True}, "no argument 'lazy_update'; leave it out: gradients are"),
        ("sgd", {"param_dict": {}}, "no argument 'param_dict'; set optimizer.lr_mult and"),
        ("lamb", {"aggregate_num": 4}, "no argument 'aggregate_num'; leave it out: whole"),
    ],
)
def test_an_optimizer_of_mxnet_names_what_to_type(
    name: str, arguments: dict[str, Any], advice: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(advice)):
        optimizer.create(name, **arguments)
    with pytest.raises(UsageError, match=re.escape(advice)):
        ncclkv.Trainer({"w": np.ones(2)}, name, arguments)


def test_an_op_of_numpy_names_ours() -> None:
    with ncclkv.create("local") as kv:
        for call in (lambda: kv.allreduce(1.0, "mean"), lambda: kv.init("w", 1.0, op="mean")):
            with pytest.raises(UsageError, match="op 'mean' is unknown; did you mean 'avg'"):
                call()


def test_an_array_in_the_place_of_the_op_names_out() -> None:
    gradient = np.ones(3)
    with (
        ncclkv.create("local") as kv,
        pytest.raises(UsageError, match="op is a ndarray, and not a str.*for the result: out="),
    ):
        kv.allreduce(gradient, gradient)


@pytest.mark.parametrize(
    ("stored", "pushed", "advice"),
    [
        (np.zeros(2), np.ones(2, int), r"convert it with .astype('float64')"),
        (
            np.zeros(2),
            np.ones(2, complex),
            "with .real.astype('float64'), which drops imaginary parts, or give the key a value "
            "of complex128 at init",
        ),
        (
            np.zeros(2, int),
            np.ones(2),
            "with .astype('int64'), which drops fractions, or give the key a value of float64",
        ),
    ],
)
def test_the_error_names_what_a_conversion_drops(
    stored: NDArray[Any], pushed: NDArray[Any], advice: str
) -> None:
    with ncclkv.create("local") as kv:
        kv.init("w", stored)
        with pytest.raises(DTypeMismatch, match=re.escape(advice)):
            kv.push("w", pushed)


def test_a_list_of_numbers_names_the_array() -> None:
    with (
        ncclkv.create("local") as kv,
        pytest.raises(UsageError, match=r"not a list of 2; .* pass np.asarray\(...\)"),
    ):
        kv.init("w", [0.0, 0.0])


def test_an_optimizer_of_torch_is_refused_by_name() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(2, 2)
    advice = (
        "torch's SGD is no optimizer of ncclkv; make one by ncclkv.optimizer.create('sgd', "
        "learning_rate=0.1), or keep torch's with ncclkv.torch.DataParallel(model)"
    )
    with ncclkv.create("local") as kv:
        for given in (torch.optim.SGD, torch.optim.SGD(layer.parameters(), lr=0.1)):
            with pytest.raises(ncclkv.errors.UsageError, match=re.escape(advice)):
                kv.set_optimizer(given)
            with pytest.raises(ncclkv.errors.UsageError, match=re.escape(advice)):
                ncclkv.Trainer(layer, given)
