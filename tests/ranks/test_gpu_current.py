"""Layers 4 and 5, NCCL on a real GPU: a verb leaves the thread's stream, device and allocator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Thread
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from ncclkv import Instrument, KVStore
from ncclkv.errors import UsageError
from ncclkv.optimizer import SGD
from tests.conformance.stores import Stores
from tests.nccl import gpu
from tests.nccl.gpu_current import chosen, current, kept, rank_device

__all__ = ["rank_device"]

pytestmark = [
    pytest.mark.limit(40),
    pytest.mark.first,
    pytest.mark.usefixtures("rank_device"),
]

LOCAL = (
    "gradient_compression",
    "is_capable",
    "keys",
    "row_sparse_pull",
    "set_gradient_compression",
)
"""Verbs that put no work on a device."""

Call = Callable[[], Any]


def in_block(open_block: Callable[[], AbstractContextManager[Any]], call: Call) -> Call:
    """Return a function that makes a call inside a block of the store."""

    def run() -> None:
        with open_block():
            call()

    return run


def array(number: float) -> Any:
    import cupy

    return cupy.full((5, 7), number, np.float32)


def verbs(kv: KVStore, directory: Path) -> dict[str, Call]:
    """Return a call of each verb."""

    def push() -> None:
        kv.push(["a", "b"], [array(1), array(2)])

    def step() -> None:
        kv.push(["a", "b"], gradients)
        kv.pull(["a", "b"], out=outs)

    def capture() -> None:
        step()
        with kept("capture"), kv.capture() as captured:
            step()
        captured.replay()

    gradients, outs = [array(1), array(2)], [array(0), array(0)]
    path = str(directory)
    observer = Instrument()
    return {
        "init": lambda: kv.init(["a", "b"], [array(1), array(2)]),
        "reset": lambda: kv.reset("a", array(3)),
        "broadcast": lambda: kv.broadcast("c", array(1), array(0)),
        "push": push,
        "pull": lambda: kv.pull("a", out=array(0)),
        "pushpull": lambda: kv.pushpull("a", array(1), array(0)),
        "value": lambda: kv.value("a"),
        "grad_view": lambda: kv.push("a", kv.grad_view("a")),
        "spec": lambda: kv.spec("a"),
        "explain_plan": kv.explain_plan,
        "group": in_block(kv.group, push),
        "overlap": in_block(lambda: kv.overlap(["a", "b"]), push),
        "uneven": in_block(kv.uneven, push),
        "allreduce": lambda: kv.allreduce(array(1)),
        "allgather": lambda: kv.allgather(array(1)),
        "broadcast_object": lambda: kv.broadcast_object("x"),
        "allgather_object": lambda: kv.allgather_object("x"),
        "set_updater": lambda: (kv.set_updater(lambda key, grad, stored: stored.fill(0)), push()),
        "set_optimizer": lambda: (kv.set_optimizer(SGD(momentum=0.5)), push()),
        "capture": capture,
        "save": lambda: kv.save(path),
        "load": lambda: kv.load(path),
        "save_optimizer_states": lambda: kv.save_optimizer_states(path),
        "load_optimizer_states": lambda: kv.load_optimizer_states(path),
        "add_instrument": lambda: (kv.add_instrument(observer), push()),
        "remove_instrument": lambda: kv.remove_instrument(observer),
        "trace": lambda: (kv.trace(f"{path}-traces"), push(), kv.wait()),
        "stop_traces": kv.stop_traces,
        "metrics": lambda: (kv.metrics(), push(), kv.metrics()),
        "wait": kv.wait,
        "barrier": kv.barrier,
        "close": kv.close,
    }


@pytest.mark.parametrize("how", ["with", "use", "use in with"])
@pytest.mark.parametrize("update_on", ["every_rank", "root", "sharded"])
@pytest.mark.parametrize("reproducible", [False, True])
def test_a_verb_leaves_the_current_stream(
    tmp_path: Path, how: str, update_on: str, reproducible: bool
) -> None:
    directory = Path(MPI.COMM_WORLD.bcast(str(tmp_path)))
    with Stores("nccl", update_on) as create, chosen(how) as stream:
        with kept("create"):
            kv = create(reproducible=reproducible)
        calls = verbs(kv, directory)
        public = {n for n, f in vars(KVStore).items() if type(f) is FunctionType and n[0] != "_"}
        assert public - set(LOCAL) == set(calls), "a verb without a call here"
        for name, call in calls.items():
            with kept(name):
                call()
            assert current()[1] == stream, name


@pytest.mark.parametrize("update_on", ["every_rank", "root"])
def test_a_program_s_kernels_stay_in_order_after_a_push(update_on: str) -> None:
    import cupy

    with Stores("nccl", update_on) as create:
        kv = create()
        kv.init("w", array(0))
        kv.set_optimizer(SGD())
        big = cupy.zeros(gpu.busy(2**26), np.float32)
        copy = cupy.full_like(big, -1)
        cupy.cuda.get_current_stream().synchronize()
        with chosen("use"):
            for _ in range(40):
                big += 1
            kv.push("w", array(1))
            # Without the chosen stream this copy would run before the additions.
            cupy.copyto(copy, big)
            cupy.cuda.get_current_stream().synchronize()
        assert (copy.get() == 40).all()


def on_other(call: Call, uses: int | None) -> tuple[Any, ...]:
    """Return what is current before and after a call in a thread that uses a device, or none."""
    import cupy

    found: list[Any] = []

    def body() -> None:
        if uses is not None:
            cupy.cuda.Device(uses).use()
            cupy.zeros(1)
        found.append(current())
        call()
        found.append(current())

    thread = Thread(target=body)
    thread.start()
    thread.join()
    return tuple(found)


@pytest.mark.parametrize("uses", ["no device", "the store's device", "another device"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_push_of_another_thread_leaves_its_device(uses: str, fails: bool) -> None:
    import cupy

    own, count = cupy.cuda.runtime.getDevice(), cupy.cuda.runtime.getDeviceCount()
    # A process that sees 1 device has no other.
    used = {"no device": None, "the store's device": own}.get(uses, (own + 1) % count)
    values = np.full((5, 7), 3, np.float32)

    def push() -> None:
        if fails:
            with pytest.raises(UsageError, match="key 'b'"):
                kv.push("b", values)
        kv.push("a", values)

    with Stores("nccl", "every_rank") as create:
        kv = create()
        kv.init(["a", "b"], [values, values])
        with kv.overlap(["a"]):
            before, after = on_other(push, used)
        assert (kv.value("a").get() == 3 * kv.num_workers).all()
    # A thread that has used no device has none to give back.
    assert after == before if used is not None else after[0] == own
