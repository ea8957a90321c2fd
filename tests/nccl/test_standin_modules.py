"""Layer 2, recording stand-in, not NCCL: a module of torch whose passes use streams and threads.

torch on hosts computes.  The threads and the streams are those of a backward pass on a GPU: hooks
run in a thread of autograd's, on the stream of the gradients.  The callback at the end runs on the
stream of the caller, which torch has made wait for the gradients.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")
torch = pytest.importorskip("torch", reason="torch is not installed")

from ncclkv.torch import DataParallel, data_parallel, module_gradients, pass_devices, passes  # noqa: E402
from tests.harness.context import context_of  # noqa: E402
from tests.nccl.standin import Worker, run_on_standin  # noqa: E402
from tests.nccl.standin.stores import StandInStores  # noqa: E402

pytestmark = pytest.mark.limit(30)


class Torch:
    """torch of one rank, as it is on a GPU: its current stream, and its thread for hooks."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.callers = worker.device.stream("the caller's stream")
        self.gradients = worker.device.stream("the stream of the gradients")
        self.current = self.callers
        self.callbacks: list[Callable[[], None]] = []

    def backward(self, loss: Any) -> None:
        """Make a backward pass as on a GPU, in which the calling thread waits."""
        self.callbacks.clear()
        self._in_thread(loss.backward, self.gradients)
        streams = self.worker.streams
        streams.wait(self.callers, streams.record(self.gradients))
        for callback in self.callbacks:
            self._in_thread(callback, self.callers)

    def _in_thread(self, call: Callable[[], None], stream: int) -> None:
        """Run a call in a new thread, in which a stream is torch's current stream."""
        raised: list[BaseException] = []

        def work() -> None:
            try:
                call()
            except BaseException as error:
                raised.append(error)

        before, self.current = self.current, stream
        thread = threading.Thread(target=work, name="autograd")
        thread.start()
        thread.join()
        self.current = before
        if raised:
            raise raised[0]


class Place(module_gradients.GradientSlot):
    """A gradient on the stand-in's device, which torch accesses on its current stream."""

    def __init__(self, parameter: Any, array: Any, name: str, *, alike: bool) -> None:
        self.parameter, self.array = parameter, array
        self.view, self.references = None, 0  # each gradient is written by itself
        self._torch = RANKS[array.data.mem._owner.streams.device]

    def yield_place(self, name: str) -> None:
        streams = self._torch.worker.streams
        with streams.on(self._torch.current):
            streams.write(self.array, self.parameter.grad.numpy())

    def give_back(self, *, as_view: bool) -> None:
        streams = self._torch.worker.streams
        with streams.on(self._torch.current):
            self.parameter.grad = torch.from_numpy(streams.get(self.array))


RANKS: dict[Any, Torch] = {}
"""torch of each rank, by its device."""


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give modules in host memory the passes of modules on a GPU; the rank is its number."""

    def by_rank(number: int) -> Torch:
        return next(each for each in RANKS.values() if each.worker.rank == number)

    def on_torch_stream(number: int) -> Any:
        return by_rank(number).worker.streams.on(by_rank(number).current)

    def queue_callback(callback: Any) -> None:
        by_rank(callback.__self__._kv.rank).callbacks.append(callback)

    monkeypatch.setattr(pass_devices, "on_torch_stream", on_torch_stream)
    monkeypatch.setattr(data_parallel, "device_of", lambda kv, _: pass_devices.Gpu(kv, kv.rank))
    monkeypatch.setattr(module_gradients, "GradientSlot", Place)
    monkeypatch.setattr(module_gradients, "as_tensor", lambda array, *_: array)
    engine = SimpleNamespace(queue_callback=queue_callback)
    monkeypatch.setattr(passes, "Variable", SimpleNamespace(_execution_engine=engine))
    RANKS.clear()


def network() -> Any:
    module = torch.nn.Sequential(*(torch.nn.Linear(2, 2, bias=False) for _ in range(3)))
    for layer in module:
        torch.nn.init.eye_(layer.weight)
    return module


def refuse() -> None:
    raise AssertionError("the host waits for the device in a backward pass")


@pytest.mark.parametrize("lazy", [False, True], ids=["prompt", "lazy"])
@pytest.mark.parametrize("missing", ["error", "zeros"])
def test_gradients_are_ordered_by_streams_alone(on_gpus: None, lazy: bool, missing: str) -> None:
    def body(worker: Worker) -> None:
        RANKS[worker.device] = its = Torch(worker)
        with StandInStores(worker, "every_rank") as create:
            kv = create(bucket_bytes=0, missing=missing)
            model = DataParallel(network(), kv)
            for step in range(3):
                model.zero_grad()
                loss = model(torch.full((1, 2), worker.rank + step + 1.0)).sum()
                with pytest.MonkeyPatch.context() as patch:
                    if missing == "error":
                        patch.setattr(context_of(kv).comm, "synchronize", refuse)
                    its.backward(loss)
                for layer in model.module:
                    assert layer.weight.grad.tolist() == [[step + 1.5] * 2] * 2
            model.close()

    run_on_standin(2, body, lazy=lazy)


@pytest.mark.parametrize(
    ("compress", "expected", "error"),
    [
        ("fp16", [1.5, 2.5, 3.5], 0),
        ({"type": "2bit", "threshold": 1.0}, [1] * 3, 0),
        (
            {"type": "powersgd", "start_powerSGD_iter": 1, "min_compression_rate": 0.1},
            [1.5, 2.5, 3.5],
            1e-6,
        ),
    ],
)
def test_compressed_gradients_need_no_wait(
    on_gpus: None, compress: Any, expected: list[float], error: float
) -> None:
    def body(worker: Worker) -> None:
        RANKS[worker.device] = its = Torch(worker)
        with StandInStores(worker, "every_rank") as create:
            kv = create(bucket_bytes=0)
            model = DataParallel(network(), kv, compress=compress)
            for step in range(3):
                model.zero_grad()
                loss = model(torch.full((1, 2), worker.rank + step + 1.0)).sum()
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(context_of(kv).comm, "synchronize", refuse)
                    its.backward(loss)
                for layer in model.module:
                    assert (layer.weight.grad - expected[step]).abs().max() <= error
            model.close()

    run_on_standin(2, body, lazy=True)


def failing(_: Any) -> None:
    raise ZeroDivisionError


def test_an_exception_in_backward_leaves_the_next_step_right(on_gpus: None) -> None:
    def body(worker: Worker) -> None:
        RANKS[worker.device] = its = Torch(worker)
        with StandInStores(worker, "every_rank") as create:
            model = DataParallel(network(), create(bucket_bytes=0))
            handle = model.module[0].weight.register_hook(failing)
            with pytest.raises(ZeroDivisionError):
                its.backward(model(torch.ones(1, 2)).sum())
            handle.remove()
            model.zero_grad()
            its.backward(model(torch.full((1, 2), worker.rank + 1.0)).sum())
            for layer in model.module:
                assert layer.weight.grad.tolist() == [[1.5] * 2] * 2
            model.close()

    run_on_standin(2, body, lazy=True)
