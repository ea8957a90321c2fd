"""Saves by several ranks: without a common directory, and with a failure on one rank."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is absent: the extra `checkpoint`")

import ncclkv
from ncclkv.checkpoint import write as writing
from ncclkv.errors import CheckpointError
from ncclkv.optimizer import Adam
from ncclkv.testing import run_ranks
from tests.conformance.checkpoints import Sum
from tests.harness.context import context_of
from tests.unit.checkpoint import small_checkpoints

SIZES = [5, 40, 3000, 1]
KEYS = [*range(len(SIZES))]


def push(kv: Any, seed: int = 0) -> None:
    rng = np.random.default_rng([seed, kv.rank])
    kv.push(KEYS, [rng.integers(-4, 5, size).astype(np.float32) for size in SIZES])


def bits(kv: Any) -> list[bytes]:
    return [array.tobytes() for array in kv.pull(KEYS)]


def opened(updater: Any = None) -> Any:
    """Return a sharded store that has made a step."""
    kv = ncclkv.create("threads", update_on="sharded", bucket_bytes=4096, timeout=20)
    kv.init(KEYS, [np.ones(size, np.float32) for size in SIZES])
    if updater is None:
        kv.set_optimizer(Adam(learning_rate=0.125))
    else:
        kv.set_updater(updater)
    push(kv)
    return kv


@pytest.mark.parametrize("update", ["optimizer", "object"])
def test_one_disk_or_several_give_the_same_checkpoint(
    tmp_path: Path, disks: str, update: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ncclkv")

    def body() -> None:
        def updater() -> Any:
            return None if update == "optimizer" else Sum(2.0)

        with opened(updater()) as kv:
            path = Path(kv.save(tmp_path, step=4))
            names = sorted(each.name for each in path.iterdir())
            written = [f"tensors-0000-of-rank-{rank}.safetensors" for rank in range(3)]
            if disks == "two disks":
                written = ["tensors-0000.safetensors"]
            assert names == ["checkpoint.json", "checkpoint.sha256", *written]
            push(kv, 1)
            expected = bits(kv)
        with opened(updater()) as kv:
            push(kv, 5)
            kv.load(tmp_path)
            push(kv, 1)
            assert bits(kv) == expected

    run_ranks(3, body, timeout=20)
    lines = [line for line in caplog.messages if line.startswith("save: the directory ")]
    assert len(lines) == (1 if disks == "two disks" else 0)
    assert all(line.endswith("of rank 1; rank 0 writes the parts of all ranks") for line in lines)


def test_each_rank_writes_a_third(tmp_path: Path) -> None:
    size = 3 * 4096

    def body() -> None:
        with ncclkv.create("threads", update_on="sharded") as kv:
            kv.init("w", np.arange(size, dtype=np.float32))
            kv.set_optimizer(Adam())
            kv.push("w", np.ones(size, np.float32))
            kv.save(tmp_path)

    run_ranks(3, body, timeout=20)
    (path,) = tmp_path.iterdir()
    made = json.loads((path / "checkpoint.json").read_text())
    thirds = [(third * 4096, (third + 1) * 4096) for third in range(3)]
    for row, (lo, hi) in zip(made["files"], thirds, strict=True):
        names = ["value.0", "state.0.mean", "state.0.variance"]
        assert row["pieces"] == [[name, lo, hi] for name in names]
        assert 3 * 4096 * 4 <= row["bytes"] < 3 * 4096 * 4 + 1024


def test_the_manifest_is_written_after_the_files_of_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, order = writing._write_file, []

    def slow(folder: str, name: str, blob: bytes) -> None:
        if "rank-2" in name:
            time.sleep(0.2)
        write(folder, name, blob)
        order.append(name.split("-")[-1])

    monkeypatch.setattr(writing, "_write_file", slow)

    def body() -> None:
        with opened() as kv:
            kv.save(tmp_path)

    run_ranks(3, body, timeout=20)
    files = [f"{rank}.safetensors" for rank in range(3)]
    assert sorted(order[:3]) == files
    assert order[2:] == [files[2], "checkpoint.json", "checkpoint.sha256"]


def test_a_failure_on_one_rank_fails_the_save_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = small_checkpoints.written(tmp_path)
    write, is_full = writing._write_file, [True]

    def full(folder: str, name: str, blob: bytes) -> None:
        if is_full[0] and "rank-1" in name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.path.join(folder, name))
        write(folder, name, blob)

    monkeypatch.setattr(writing, "_write_file", full)
    texts = {}

    def body() -> None:
        with opened() as kv:
            expected = bits(kv)
            with pytest.raises(CheckpointError) as caught:
                kv.save(tmp_path)
            texts[kv.rank] = str(caught.value)
            assert bits(kv) == expected
            context_of(kv).comm.control.barrier()
            is_full[0] = False
            kv.save(tmp_path, step=8)

    run_ranks(3, body, timeout=20)
    assert len(set(texts.values())) == 1
    assert texts[0].startswith("save on rank 1 of 3 (host "), texts[0]
    assert texts[0].endswith("tensors-0000-of-rank-1.safetensors: No space left on device")
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        before.name,
        "step-000000008-save-000002",
    ]


def test_a_failure_of_the_leader_after_the_files_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(tmp_path))

    def body() -> None:
        with opened() as kv, pytest.raises(CheckpointError, match="rank 0 of 3.*Input/output"):
            kv.save(tmp_path)

    monkeypatch.setattr(os, "rename", fail)
    run_ranks(3, body, timeout=20)
    assert [*tmp_path.iterdir()] == []


def test_several_files_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "FILE_BYTES", 1000)

    def body() -> None:
        with opened() as kv:
            path = kv.save(tmp_path)
            values = bits(kv)
        assert len(list(Path(path).glob("tensors-*"))) > 9
        with ncclkv.create("threads") as kv:
            kv.load(tmp_path)
            assert bits(kv) == values

    run_ranks(3, body, timeout=20)
