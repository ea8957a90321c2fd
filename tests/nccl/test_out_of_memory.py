"""Layer 2, recording stand-in, not NCCL: a GPU without free memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.errors import CommAborted, OutOfMemory
from ncclkv.optimizer import SGD
from ncclkv.store import memory_check
from tests.conformance.capabilities import use_buffers
from tests.harness.context import context_of
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.buffers import StandInBuffers
from tests.nccl.standin.stores import StandInStores

pytestmark = pytest.mark.limit(30)

ROOM = 100_000
"""Free bytes on the GPU of rank 1."""

LARGE = np.ones(20_000, np.float64)
SMALL = np.ones(1_000, np.float64)


def no_memory(call: Any) -> OutOfMemory:
    """Return a call's error."""
    with pytest.raises(OutOfMemory) as caught:
        call()
    return caught.value


def sum_of(kv: Any, key: str, value: np.ndarray) -> float:
    """Return the sum of a step."""
    out = np.zeros_like(value)
    kv.push(key, value)
    kv.pull(key, out=out)
    return float(out[0])


@pytest.mark.parametrize("update_on", ["every_rank", "root"])
def test_init_is_refused_on_every_rank_and_the_store_goes_on(update_on):
    def body(worker: Worker) -> str:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, update_on) as create:
            kv = create()
            kv.init("small", SMALL)
            worker.device.leave(ROOM if worker.rank == 1 else None)
            with worker.calls() as lines:
                error = no_memory(lambda: kv.init(["large", "other"], [LARGE, SMALL]))
            assert not [line for line in lines if "allocate" in line]
            assert kv.keys() == ["small"]
            kv.init("tiny", SMALL[:10])
            assert sum_of(kv, "small", SMALL) == 3.0
            worker.device.leave(None)
            kv.init("large", LARGE)
            assert sum_of(kv, "large", LARGE) == 3.0
            kv.barrier()
            return str(error)

    for rank, text in enumerate(run_on_standin(3, body)):
        assert text == (
            f"rank {rank} of 3: init: 2 new keys of 168,192 bytes, with gradients and weights, do "
            f"not fit on rank 1: they need 520,576 bytes, earlier keys without a bucket included, "
            f"and its GPU has 100,000 left; keep less there, or use more GPUs"
        )


def test_keys_that_fit_to_the_byte_are_accepted_on_a_gpu():
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            kv = create()
            # The value from rank 0, the gradient and the weight.
            worker.device.leave(3 * 160_000 - 1)
            no_memory(lambda: kv.init("large", LARGE))
            worker.device.leave(3 * 160_000)
            kv.init("large", LARGE)
            assert sum_of(kv, "large", LARGE) == 2.0

    run_on_standin(2, body)


NODES = {"type": "2bit", "scope": "node"}
FLOATS = LARGE.astype(np.float32)
"""A key of 80,000 bytes, or 80,128 in a bucket, with a residual of the first length."""


def test_what_nodes_add_and_owe_needs_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", "2")

    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            kv = create()
            kv.set_gradient_compression(NODES)
            # The value from rank 0, the gradient and the weight; the residual and half of a sum.
            needed = 3 * 80_128 + 80_000 + 40_000
            worker.device.leave(needed - 1)
            no_memory(lambda: kv.init("large", FLOATS))
            worker.device.leave(needed)
            kv.init("large", FLOATS)
            worker.device.leave(None)
            assert sum_of(kv, "large", FLOATS) == 1.0

    run_on_standin(4, body)


@pytest.mark.parametrize(
    ("codec", "needed"), [(NODES, 120_000), ({"type": "2bit"}, 80_000), ({"type": "fp16"}, 0)]
)
def test_a_codec_that_does_not_fit_is_refused_on_every_rank(
    monkeypatch: pytest.MonkeyPatch, codec: dict[str, Any], needed: int
) -> None:
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", "2")
    monkeypatch.setattr(memory_check, "CHECK_BYTES", 1)

    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            kv = create()
            kv.init("large", FLOATS)
            assert sum_of(kv, "large", FLOATS) == 4.0
            if needed:
                worker.device.leave(needed - 1 if worker.rank == 2 else None)
                text = str(no_memory(lambda: kv.set_gradient_compression(codec)))
                assert (
                    f"what 2bit keeps of 1 keys does not fit on rank 2: it needs {needed:,}" in text
                )
                assert kv.gradient_compression("large") is None
            worker.device.leave(needed)
            kv.set_gradient_compression(codec)
            worker.device.leave(None)
            assert kv.gradient_compression("large") is not None

    run_on_standin(4, body)


def test_with_unknown_free_memory_all_keys_of_a_gpu_are_accepted():
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            kv = create()
            worker.device.leave(None)
            kv.init("large", LARGE)
            assert sum_of(kv, "large", LARGE) == 2.0

    run_on_standin(2, body)


def test_memory_that_runs_out_during_init_breaks_the_store():
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            kv = create()
            worker.broken_on_purpose = True
            check = context_of(kv).memory_check.check

            def taken(*arguments: Any) -> None:
                check(*arguments)
                worker.device.leave(0)

            context_of(kv).memory_check.check = taken
            text = str(no_memory(lambda: kv.init("large", LARGE)))
            assert text == f"rank {worker.rank} of 2: device 0 has no memory for 160,000 bytes"
            with pytest.raises(CommAborted, match="init was interrupted by OutOfMemory"):
                kv.barrier()

    run_on_standin(2, body)


def test_a_first_push_names_the_key_and_may_be_repeated_with_memory():
    def body(worker: Worker) -> float:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            kv = create()
            kv.init("large", LARGE)
            if worker.rank == 1:
                worker.device.leave(ROOM)  # another user takes the memory meanwhile
                error = no_memory(lambda: kv.push("large", LARGE))
                assert str(error) == (
                    "rank 1 of 2: push of key 'large': device 0 has no memory for 160,000 bytes"
                )
                worker.device.leave(None)
            return sum_of(kv, "large", LARGE)

    assert run_on_standin(2, body) == [2.0, 2.0]


def test_memory_that_runs_out_during_a_push_names_the_key_and_breaks_the_store():
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            kv = create()
            kv.init("large", LARGE)
            kv.barrier()
            worker.broken_on_purpose = True
            kv.grad_view("large")

            def pack(*_: Any) -> None:
                raise MemoryError("Out of memory allocating 160,000 bytes")

            worker.kernels.pack_all = pack  # type: ignore[method-assign]
            error = no_memory(lambda: kv.push("large", LARGE))
            assert str(error).startswith("rank ")
            assert "push of key 'large': Out of memory allocating 160,000 bytes" in str(error)
            with pytest.raises(CommAborted, match="push was interrupted by MemoryError"):
                kv.barrier()

    run_on_standin(2, body)


def test_optimizer_states_lack_memory_at_a_first_push():
    def body(worker: Worker) -> list[float]:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            kv = create()
            kv.init("large", LARGE)
            kv.set_optimizer(SGD(learning_rate=0.5, momentum=0.5))
            zeros, left = worker.kernels.zeros, [OutOfMemory("device 0 has no memory for 160,000")]

            def none_at_first(*arguments: Any) -> Any:
                if worker.rank == 1 and left:
                    raise left.pop()
                return zeros(*arguments)

            worker.kernels.zeros = none_at_first  # type: ignore[method-assign]
            if worker.rank == 1:
                error = no_memory(lambda: kv.push("large", LARGE))
                assert "rank 1 of 2: push of key 'large': device 0 has no memory" in str(error)
            return [sum_of(kv, "large", LARGE) for _ in range(2)]

    # Gradients are 2: momenta -1 and -1.5.
    assert run_on_standin(2, body) == [[0.0, -1.5]] * 2


def test_optimizer_states_lack_memory_when_the_optimizer_is_set():
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            kv = create()
            kv.init("large", LARGE)
            assert sum_of(kv, "large", LARGE) == 2.0
            worker.broken_on_purpose = True
            worker.device.leave(ROOM)
            error = no_memory(lambda: kv.set_optimizer(SGD(learning_rate=0.5, momentum=0.5)))
            assert "device 0 has no memory for 160,000 bytes" in str(error)
            with pytest.raises(CommAborted, match="set_optimizer was interrupted by OutOfMemory"):
                kv.barrier()

    run_on_standin(2, body)


def test_a_local_verb_may_be_repeated_with_memory():
    def body(worker: Worker) -> float:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            kv = create()
            kv.init("large", LARGE)
            worker.device.leave(ROOM)
            no_memory(lambda: kv.value("large"))
            no_memory(lambda: kv.grad_view("large"))
            worker.device.leave(None)
            return sum_of(kv, "large", LARGE)

    assert run_on_standin(2, body) == [2.0, 2.0]


def test_memory_lacking_after_the_record_of_a_call_breaks_the_store():
    """Check an allocation that fails after the call is recorded: other ranks have gone on."""

    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            kv = create(reproducible=True)
            kv.init(["large", "small"], [LARGE, SMALL])
            assert sum_of(kv, "large", LARGE) == 2.0
            worker.broken_on_purpose = True

            def allocate(nbytes: int) -> Any:
                raise OutOfMemory(f"device 0 has no memory for {nbytes:,} bytes")

            context_of(kv).comm._messages._memory = None
            context_of(kv).comm._streams.allocate = allocate
            kv.push("large", LARGE)
            no_memory(lambda: kv.pull("large"))
            with pytest.raises(CommAborted, match="pull was interrupted by OutOfMemory"):
                kv.barrier()

    run_on_standin(2, body)


def test_a_recorded_group_that_lacks_memory_breaks_the_store():
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            kv = create(reproducible=True)
            kv.init("large", LARGE)
            worker.broken_on_purpose = True

            def refuse(*_: Any) -> Any:
                raise OutOfMemory("device 0 has no memory for 80,000 bytes")

            def block() -> None:
                with kv.group():
                    kv.push("large", LARGE)
                    context_of(kv).comm._messages._scratch = refuse

            no_memory(block)
            with pytest.raises(CommAborted, match="group was interrupted by OutOfMemory"):
                kv.barrier()

    run_on_standin(2, body)
