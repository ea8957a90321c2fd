"""Residuals of several ranks: without a common directory, on other ranks, and files that vanish."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is absent: the extra `checkpoint`")

import ncclkv
from ncclkv.checkpoint import write as writing
from ncclkv.errors import CheckpointError
from ncclkv.optimizer import Adam
from ncclkv.store import residual_states
from ncclkv.testing import run_ranks
from tests.conformance.checkpoints import Sum
from tests.harness.context import context_of
from tests.unit.checkpoint import small_checkpoints
from tests.unit.store.thread_ranks import on_rank

SIZES = [5, 40, 3000, 1, 0]
KEYS = [*range(len(SIZES))]
CODEC = {"type": "2bit", "threshold": 0.5}
PLACEMENTS = ["every_rank", "root", "sharded"]


def push(kv: Any, seed: int = 0) -> None:
    """Push multiples of 1/64, so that sums of residuals are exact in any order."""
    rng = np.random.default_rng([seed, kv.rank])
    kv.push(KEYS, [rng.integers(-99, 99, size).astype(np.float32) / 64 for size in SIZES])


def bits(kv: Any) -> list[bytes]:
    return [array.tobytes() for array in kv.pull(KEYS)]


def residuals(kv: Any) -> list[np.ndarray]:
    """Return copies of the residuals of this rank, one for each key."""
    kept = context_of(kv).engine.reductions.residuals
    return [kept.all_of(key)[0].copy() for key in KEYS]


@contextmanager
def compressed(update_on: str, name: str = "threads") -> Iterator[Any]:
    """Yield a store without keys."""
    with ncclkv.create(name, update_on=update_on, bucket_bytes=4096, timeout=20) as kv:
        kv.set_gradient_compression(CODEC)
        yield kv


@contextmanager
def opened(update_on: str, updater: Any = None) -> Iterator[Any]:
    """Yield a store that has made a step."""
    with compressed(update_on) as kv:
        kv.init(KEYS, [np.ones(size, np.float32) for size in SIZES])
        if updater is None:
            kv.set_optimizer(Adam(learning_rate=0.125))
        else:
            kv.set_updater(updater)
        push(kv)
        yield kv


def names_of(path: Path) -> dict[str, list[str]]:
    """Return the names of the residuals in each file of a checkpoint."""
    from safetensors import safe_open

    found = {}
    for file in sorted(path.glob("tensors-*")):
        with safe_open(file, "np") as tensors:
            found[file.name] = sorted(name for name in list(tensors.keys()) if "residual" in name)
    return found


@pytest.mark.parametrize("update", ["optimizer", "object"])
@pytest.mark.parametrize("update_on", PLACEMENTS)
def test_each_rank_writes_its_residuals_or_the_leader_all(
    tmp_path: Path, disks: str, update_on: str, update: str
) -> None:
    def body() -> None:
        updater = None if update == "optimizer" else Sum(2.0)
        with opened(update_on, updater) as kv:
            path = Path(kv.save(tmp_path, step=4))
            saved = residuals(kv)
            if kv.rank == 0:
                by_rank = {
                    f"tensors-0000-of-rank-{rank}.safetensors": [
                        f"residual.{key}.{rank}" for key in KEYS
                    ]
                    for rank in range(3)
                }
                every = {"tensors-0000.safetensors": sorted(chain(*by_rank.values()))}
                assert names_of(path) == (by_rank if disks == "one disk" else every)
            push(kv, 1)
            expected = bits(kv)
        with compressed(update_on) as kv:
            if updater is not None:
                kv.set_updater(Sum(7.0))
            kv.load(tmp_path)
            assert [*map(bytes, residuals(kv))] == [*map(bytes, saved)]
            push(kv, 1)
            assert bits(kv) == expected

    run_ranks(3, body, timeout=20)


def test_the_last_rank_leads_as_the_root(tmp_path: Path) -> None:
    def body() -> None:
        with ncclkv.create("threads", update_on="root", root=2) as kv:
            kv.set_gradient_compression(CODEC)
            kv.init(KEYS, [np.ones(size, np.float32) for size in SIZES])
            push(kv)
            saved = residuals(kv)
            kv.save(tmp_path / str(kv.rank))
            push(kv, 1)
            kv.load(tmp_path / "2")
            assert [*map(bytes, residuals(kv))] == [*map(bytes, saved)]

    run_ranks(3, body, timeout=20)
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


def save_residuals(directory: Path) -> list[np.ndarray]:
    with opened("every_rank") as kv:
        push(kv, 1)
        kv.save(directory)
        return residuals(kv)


def load_residuals(directory: Path, update_on: str, name: str = "threads") -> list[np.ndarray]:
    with compressed(update_on, name) as kv:
        kv.load(directory)
        return residuals(kv)


@pytest.mark.parametrize("update_on", PLACEMENTS)
@pytest.mark.parametrize("batch_bytes", [1, 500, 1 << 26])
def test_other_ranks_get_the_residuals_in_turn(
    tmp_path: Path, update_on: str, batch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residual_states, "_BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(writing, "FILE_BYTES", 4096)  # the longest is in several pieces
    saved = run_ranks(4, save_residuals, tmp_path)
    for size in (1, 2, 3, 5, 4):
        found = run_ranks(size, load_residuals, tmp_path, update_on)
        for rank in range(size):
            for key in KEYS:
                expected = np.zeros(SIZES[key], np.float32)
                for number, sender in enumerate(range(rank, 4, size)):
                    given = saved[sender][key]
                    expected = expected + given if number else given
                assert found[rank][key].tobytes() == expected.tobytes(), (size, rank, key)


def test_one_process_takes_the_residuals_of_ranks(tmp_path: Path) -> None:
    """Check that its first array owes all of them: it may never push a second."""
    saved = run_ranks(4, save_residuals, tmp_path)
    found = load_residuals(tmp_path, "every_rank", "local")
    for key in KEYS:
        total = saved[0][key] + saved[1][key] + saved[2][key] + saved[3][key]
        assert found[key].tobytes() == total.tobytes()


def test_ranks_take_the_residuals_of_arrays(tmp_path: Path) -> None:
    with compressed("every_rank", "local") as kv:
        kv.init("w", np.zeros(9, np.float32))
        arrays = [np.arange(9, dtype=np.float32) * scale / 64 for scale in (1, 2, 3)]
        kv.push("w", arrays)
        kv.save(tmp_path)
        saved = [each.copy() for each in context_of(kv).engine.reductions.residuals.all_of("w")]
        kv.push("w", [*arrays, *arrays])
        kv.load(tmp_path)
        kept = context_of(kv).engine.reductions.residuals.all_of("w")
        assert [*map(bytes, kept)] == [*map(bytes, saved)] + [bytes(36)] * 3

    def body() -> bytes:
        with compressed("every_rank") as kv:
            kv.load(tmp_path)
            (found,) = context_of(kv).engine.reductions.residuals.all_of("w")
            return bytes(found)

    assert run_ranks(2, body) == [bytes(saved[0] + saved[2]), bytes(saved[1])]


def test_a_file_that_cannot_be_read_again_fails_the_load_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = run_ranks(3, save_residuals, tmp_path)
    assert any(each.any() for each in saved[0])
    install = residual_states.ResidualStates.install
    lost: Callable[[], None] = next(tmp_path.glob("*/*rank-2*")).unlink

    def late(self: Any, *given: Any) -> None:
        if on_rank() == 0:
            lost()
        install(self, *given)

    monkeypatch.setattr(residual_states.ResidualStates, "install", late)
    texts = {}

    def body() -> None:
        with opened("every_rank") as kv:
            with pytest.raises(CheckpointError) as caught:
                kv.load(tmp_path)
            texts[kv.rank] = str(caught.value)
            assert not any(each.any() for each in residuals(kv))
            push(kv, 3)
            kv.wait()

    run_ranks(3, body, timeout=20)
    assert len(set(texts.values())) == 1
    assert "of-rank-2.safetensors: No such file" in texts[0]
    assert "the residuals are zero: load a checkpoint again" in texts[0]


def test_too_many_residuals_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ncclkv.checkpoint import residuals as field

    monkeypatch.setattr(field, "MOST", 14)
    before = small_checkpoints.written(tmp_path)

    def body() -> None:
        with opened("every_rank") as kv:
            with pytest.raises(CheckpointError, match="has 15 residuals of gradients"):
                kv.save(tmp_path)
            push(kv, 1)
            kv.wait()

    run_ranks(3, body, timeout=20)
    assert [*tmp_path.iterdir()] == [before]


@pytest.mark.parametrize("update_on", PLACEMENTS)
def test_a_store_without_compression_writes_as_before(tmp_path: Path, update_on: str) -> None:
    def body() -> None:
        with ncclkv.create("threads", update_on=update_on) as kv:
            kv.init(KEYS, [np.ones(size, np.float32) for size in SIZES])
            kv.set_gradient_compression(CODEC)
            push(kv)
            kv.set_gradient_compression(None)
            kv.save(tmp_path)

    run_ranks(3, body, timeout=20)
    (path,) = tmp_path.iterdir()
    made = json.loads((path / "checkpoint.json").read_text())
    assert made["compression"] is None
    assert len(made["files"]) == (3 if update_on == "sharded" else 1)


@pytest.mark.parametrize("parameters", [{"type": "1bit"}, None])
def test_another_type_after_a_load_drops_residuals(
    tmp_path: Path, parameters: dict[str, Any] | None
) -> None:
    """Check a key that has no bucket yet: a residual of 2bit is none of 1bit."""

    def owed(kv: Any) -> list[float]:
        kept = context_of(kv).engine.reductions.residuals
        return [float(each[0]) for each in kept.all_of("w")]

    with compressed("every_rank", "local") as kv:
        kv.init("w", np.zeros(3, np.float32))
        kv.push("w", np.full(3, 0.75, np.float32))
        kv.save(tmp_path)
    with compressed("every_rank", "local") as kv:
        kv.load(tmp_path)
        assert not context_of(kv).engine.layout.sealed
        kv.set_gradient_compression({**CODEC, "threshold": 2})
        assert owed(kv) == [0.25]
        kv.set_gradient_compression(parameters)
        assert owed(kv) == []
        path = kv.save(tmp_path)
        assert json.loads((Path(path) / "checkpoint.json").read_text())["compression"] is None
        kv.set_gradient_compression(CODEC)
        kv.push("w", np.full(3, 0.375, np.float32))
        assert owed(kv) == [0.375]
