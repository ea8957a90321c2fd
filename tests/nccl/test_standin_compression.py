"""Layer 2, recording stand-in, not NCCL: compressed gradients of stores in a GPU's memory.

The conformance cases of compression run there, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.engine.saturation import FIRST
from ncclkv.store.sums import SavedResiduals
from tests.conformance.capabilities import current_buffers, use_buffers
from tests.conformance.captures import CODECS
from tests.conformance.expect import full, same
from tests.conformance.stores import Stores
from tests.harness.context import context_of
from tests.nccl.alone_cases import ALONE_CASES, POWERSGD
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.buffers import StandInBuffers
from tests.nccl.standin.stores import StandInStores

pytestmark = pytest.mark.limit(30)


def with_store(body: Callable[[Worker, Any], object], **options: Any) -> Callable[[Worker], None]:
    """Return the body of a rank that opens a store."""

    def run(worker: Worker) -> None:
        stores = StandInStores(worker, "every_rank")
        with use_buffers(StandInBuffers(worker)), stores as create:
            body(worker, create(**options))

    return run


def device_stores(worker: Worker) -> StandInStores:
    """Return the stand-in's stores of one process."""
    stores = StandInStores(worker, "every_rank")
    stores.name = "device"
    return stores


@pytest.mark.parametrize(("body", "needs"), ALONE_CASES)
def test_case_of_a_store_of_one_process(body: Callable[[Stores], None], needs: str | None) -> None:
    if needs:
        pytest.importorskip(needs, reason=f"{needs} is not installed")

    def run(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), device_stores(worker) as create:
            body(create)

    run_on_standin(1, run, lazy=True)


def refuse() -> None:
    raise AssertionError("the host waits for the device")


def refuse_memory(*arguments: object) -> None:
    raise AssertionError("a step allocates memory")


@pytest.mark.parametrize("codec", [*CODECS, POWERSGD], ids=lambda codec: codec["type"])
def test_arrays_are_encoded_without_a_wait_or_new_memory(codec: dict[str, Any]) -> None:
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), device_stores(worker) as create:
            kv = create()
            kv.set_gradient_compression(codec)
            kv.init("w", np.zeros((40, 30), np.float32))
            arrays = [current_buffers().put(full(n, (40, 30))) for n in (1, 2, 3)]
            kv.push("w", arrays)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(context_of(kv).comm, "synchronize", refuse)
                patch.setattr(worker.streams, "allocate", refuse_memory)
                for _ in range(3):
                    kv.push("w", arrays)
            kv.wait()

    run_on_standin(1, body, lazy=True)


def test_large_arrays_are_warned_of_without_a_wait(caplog: pytest.LogCaptureFixture) -> None:
    """Check that one array of two counts if most of its residuals are beyond."""

    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), device_stores(worker) as create:
            kv = create()
            kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
            kv.init("w", np.zeros(128, np.float32))
            for _ in range(FIRST - 1):
                kv.push("w", [full(0.1, (128,)), full(3, (128,))])
            kv.wait()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(context_of(kv).comm, "synchronize", refuse)
                kv.push("w", [full(0.1, (128,)), full(3, (128,))])
                assert kv.gradient_compression("w")["saturated"] == 1

    with caplog.at_level(logging.WARNING, "ncclkv"):
        run_on_standin(1, body, lazy=True)
    (record,) = caplog.records
    assert "2bit of 'w': 100 % of the residuals are beyond 0.5" in record.getMessage()


def push_beyond(scope: str) -> Callable[[Worker, Any], None]:
    """Return a body that pushes more than a threshold until a warning is due, and never waits."""

    def body(worker: Worker, kv: Any) -> None:
        kv.set_gradient_compression({"type": "2bit", "threshold": 0.5, "scope": scope})
        kv.init(["w", "b"], [np.zeros(128, np.float32), np.zeros(3, np.float32)])
        for _ in range(FIRST - 1):
            kv.push(["w", "b"], [full(3, (128,)), full(0.1, (3,))])
        kv.wait()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(context_of(kv).comm, "synchronize", refuse)
            kv.push(["w", "b"], [full(3, (128,)), full(0.1, (3,))])
            assert kv.gradient_compression("w")["saturated"] == 1
            assert kv.gradient_compression("b")["saturated"] == 0

    return body


def test_large_gradients_are_warned_of_without_a_wait(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ncclkv"):
        run_on_standin(2, with_store(push_beyond("rank"), bucket_bytes=0), lazy=True)
    (record,) = caplog.records
    assert record.getMessage() == (
        "ncclkv: 2bit of 'w': 100 % of the residuals are beyond 0.5, and grow: an element sends at "
        "most 0.5 a push, and these gradients have a root mean square of 3; use a threshold of "
        "about 12, rescale the gradients, or use another type"
    )


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_send_codes_alone(size: int) -> None:
    """Check both forms: to all, and in two steps, in which the counts have 4 bits."""
    count = 128 * 1024

    def body(worker: Worker, kv: Any) -> None:
        kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        kv.init("w", np.zeros(count, np.float32))
        for _ in range(2):
            with worker.calls() as lines:
                kv.push("w", full(0.6, (count,)))
            messages = [line for line in lines if line.startswith("send(")]
        same(kv.pull("w"), 0.5 * size)
        counts = [int(line.split("count=")[1].split(",")[0]) for line in messages]
        assert all("dtype=uint8" in line for line in messages)
        share = count // size
        expected = [count // 4] if size == 2 else [share // 4] * 3 + [share // 2] * 3
        assert counts == expected

    run_on_standin(size, with_store(body, bucket_bytes=0))


WIDTH, HEIGHT, BIAS = 300, 200, 60


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_send_narrow_matrices_alone(size: int) -> None:
    """Check the messages of a launch: those of P and the bias together, and those of Q."""

    def body(worker: Worker, kv: Any) -> None:
        kv.set_gradient_compression({"type": "powersgd", "rank": 2, "start_powerSGD_iter": 0})
        shapes = (HEIGHT, WIDTH), (BIAS,)
        kv.init(["w", "b"], [np.zeros(shape, np.float32) for shape in shapes])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(context_of(kv).comm, "synchronize", refuse)
            for _ in range(2):
                with worker.calls() as lines:
                    kv.push(["w", "b"], [full(1, shape) for shape in shapes])
        messages = [line for line in lines if line.startswith("send(")]
        assert all("dtype=float32" in line for line in messages)
        counts = [int(line.split("count=")[1].split(",")[0]) for line in messages]
        each = [2 * HEIGHT + BIAS, 2 * WIDTH]
        assert counts == [count for count in each for _ in range(size - 1)]
        assert kv.explain_plan().count("encoded by powersgd: 'w'") == 1
        np.testing.assert_allclose(current_buffers().get(kv.pull("w")), size, rtol=1e-5)

    run_on_standin(size, with_store(body, bucket_bytes=1 << 20))


def test_a_skipped_launch_leaves_matrices_as_they_were() -> None:
    """Check that NaN reaches neither residual nor Q, though the host does not wait for the flag."""

    def body(worker: Worker, kv: Any) -> None:
        kv.set_gradient_compression({"type": "powersgd", "start_powerSGD_iter": 0})
        kv.init("w", np.zeros((40, 30), np.float32))
        rng = np.random.default_rng(worker.rank)
        given = [rng.standard_normal((40, 30)).astype(np.float32) for _ in range(2)]
        kv.push("w", given[0])
        kv.wait()
        reductions, get = context_of(kv).engine.reductions, current_buffers().get
        kept = [*reductions.residuals.all_of("w"), reductions.bases.of(kv.spec("w")).q]
        before = [get(each).tobytes() for each in kept]
        given[1][3, 4] = np.nan
        kv.push("w", given[1])
        kv.wait()
        assert [get(each).tobytes() for each in kept] == before

    run_on_standin(2, with_store(body, nonfinite="skip_step"), lazy=True)


def test_a_launch_that_is_dropped_leaves_matrices_as_they_were() -> None:
    """Check what a torch module restores of a parameter that a pass has not used."""

    def body(worker: Worker, kv: Any) -> None:
        kv.set_gradient_compression({"type": "powersgd", "start_powerSGD_iter": 0})
        kv.init("w", np.zeros((40, 30), np.float32))
        kv.push("w", full(1, (40, 30)))
        kv.wait()
        basis = context_of(kv).engine.reductions.bases.of(kv.spec("w"))
        get, sums, states = current_buffers().get, [], []
        for step in range(4):
            rng = np.random.default_rng([step // 2, worker.rank])
            saved = SavedResiduals(kv, "w")
            kv.push("w", rng.standard_normal((40, 30)).astype(np.float32))
            sums.append(get(kv.pull("w")).tobytes())
            kv.wait()
            states.append((basis.launches, get(basis.q).tobytes()))
            if step % 2 == 0:
                saved.restore()
        assert sums[0] == sums[1] != sums[2] == sums[3]
        assert states[0] == states[1] != states[2] == states[3]

    run_on_standin(2, with_store(body), lazy=True)


def test_a_first_q_is_copied_once_if_the_last_is_kept() -> None:
    copies: dict[bool, list[int]] = {}

    def body(warm: bool, worker: Worker, kv: Any) -> None:
        parameters = {"type": "powersgd", "start_powerSGD_iter": 0, "warm_start": warm}
        kv.set_gradient_compression(parameters)
        kv.init("w", np.zeros((40, 30), np.float32))
        found = []
        for _ in range(3):
            with worker.calls() as lines:
                kv.push("w", full(1, (40, 30)))
            found.append(sum(line.startswith("pack") and "the host's" in line for line in lines))
        if worker.rank == 0:
            copies[warm] = found

    for warm in False, True:
        run_on_standin(2, with_store(partial(body, warm)))
    assert copies[True][0] > copies[True][1] == copies[True][2], copies
    assert copies[False][1:] == [count + 1 for count in copies[True][1:]], copies


@pytest.fixture
def nodes_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put two ranks on each node."""
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", "2")


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.usefixtures("nodes_of_two")
def test_nodes_send_codes_alone(size: int) -> None:
    """Check both forms: codes to all nodes, and in two steps, in which counts have 4 bits."""
    count, nodes = 256 * 1024, size // 2

    def body(worker: Worker, kv: Any) -> None:
        kv.set_gradient_compression({"type": "2bit", "threshold": 0.5, "scope": "node"})
        kv.init("w", np.zeros(count, np.float32))
        for _ in range(2):
            with worker.calls() as lines:
                kv.push("w", full(0.3, (count,)))
            messages = [line for line in lines if line.startswith("send(")]
        same(kv.pull("w"), 0.5 * nodes)
        sent = [line.split(", peer")[0].removeprefix("send(count=") for line in messages]
        own = count // 2  # the slice of each rank of a node
        inside = [f"{own}, dtype=float32"], [f"{own // 2}, dtype=uint8"]
        between = [f"{own // 4}, dtype=uint8"]
        if nodes == 4:
            between = [f"{own // 16}, dtype=uint8"] * 3 + [f"{own // 8}, dtype=uint8"] * 3
        assert sent == [*inside[0], *between, *inside[1]]

    run_on_standin(size, with_store(body, bucket_bytes=0))


@pytest.mark.parametrize("size", [4, 5, 6])
@pytest.mark.parametrize("kind", ["fp16", "bf16"])
@pytest.mark.usefixtures("nodes_of_two")
def test_nodes_send_halves(kind: str, size: int) -> None:
    """Check two and three nodes: three exchange the sums of slices, and the last may be small."""
    count = 40_000

    def body(worker: Worker, kv: Any) -> None:
        kv.set_gradient_compression({"type": kind, "scope": "node"})
        kv.init("w", np.zeros(count, np.float32))
        kv.push("w", full(1 + 2**-12 if worker.rank == 0 else 1, (count,)))
        same(kv.pull("w"), size)  # a node rounds 2 + 2**-12 to 2
        # A rank that rounded its own array would lose the small part of the first.
        given = {0: 1 + 2**-12, 1: -1}.get(worker.rank, 2**-12)
        kv.push("w", full(given, (count,)))
        same(kv.pull("w"), (size - 1) * 2**-12)

    run_on_standin(size, with_store(body, bucket_bytes=0), lazy=True)


@pytest.mark.usefixtures("nodes_of_two")
def test_each_rank_of_the_first_node_warns_of_its_slice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ncclkv"):
        run_on_standin(4, with_store(push_beyond("node"), bucket_bytes=0), lazy=True)
    words = "2bit of 'w': 100 % of the residuals are beyond 0.5", "a root mean square of 6"
    assert len(caplog.records) == 2
    assert all(word in record.getMessage() for record in caplog.records for word in words)
