"""Checkpoints loaded by other numbers of ranks, with other placements and memory."""

from __future__ import annotations

from pathlib import Path
from threading import Thread, current_thread
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is absent: the extra `checkpoint`")

import ncclkv
from ncclkv.optimizer import SGD
from ncclkv.testing import run_ranks

KEYS = [f"k{number}" for number in range(9)]


def push(kv: Any, number: int) -> None:
    """Push gradients whose sums depend on the step alone, for any number of ranks."""
    sums = [np.arange(1.0, 9) * (number + place) for place in range(len(KEYS))]
    kv.push(KEYS, sums if kv.rank == 0 else [np.zeros(8)] * len(KEYS))


def save(directory: Path, options: dict[str, Any]) -> list[bytes]:
    """Make two steps, a save and two steps; return the rank's values."""
    with ncclkv.create("threads", **options) as kv:
        kv.init(KEYS, [np.full(8, 1.0 / 3)] * len(KEYS))
        kv.set_optimizer(SGD(learning_rate=0.3, momentum=0.7))
        for number in range(2):
            push(kv, number)
        kv.save(directory, step=2)
        return go_on(kv)


def load(directory: Path, options: dict[str, Any]) -> list[bytes]:
    """Load, make the last two steps, and return the rank's values."""
    with ncclkv.create("threads", **options) as kv:
        assert kv.load(directory).step == 2
        return go_on(kv)


def go_on(kv: Any) -> list[bytes]:
    for number in range(2, 4):
        push(kv, number)
    return [array.tobytes() for array in kv.pull(KEYS)]


PLACES: list[dict[str, Any]] = [
    {"update_on": "every_rank"},
    {"update_on": "root"},
    {"update_on": "every_rank", "bucket_bytes": 0},
    {"update_on": "root", "bucket_bytes": 300},
]


@pytest.mark.parametrize("place", PLACES[:2], ids=lambda place: place["update_on"])
@pytest.mark.parametrize("saved_by", [1, 3])
def test_checkpoints_load_at_any_number_of_ranks(
    tmp_path: Path, saved_by: int, place: dict[str, Any]
) -> None:
    expected = run_ranks(saved_by, save, tmp_path, place)[0]
    for size in (1, 2, 4):
        for other in PLACES:
            assert run_ranks(size, load, tmp_path, other) == [expected] * size


@pytest.mark.parametrize("directory", ["that of the root", "another rank's"])
def test_no_shared_disk_is_needed(tmp_path: Path, directory: str) -> None:
    """Check ranks with different directories: only the root's is written and read."""

    def body() -> None:
        with ncclkv.create("threads", update_on="root", root=1) as kv:
            own = tmp_path / str(kv.rank)
            kv.init("w", np.full(3, 2.0))
            path = kv.save(own)
            assert Path(path).parent == tmp_path / "1"
            kv.reset("w", np.zeros(3))
            kv.load(path if directory == "that of the root" else own)
            assert kv.pull("w")[0] == 2

    run_ranks(3, body)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_a_save_may_take_longer_than_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that progress messages extend the deadline, which limits silence."""
    from time import sleep

    from ncclkv.checkpoint import write as writing

    monkeypatch.setattr(writing, "FILE_BYTES", 1)
    put = writing._write_file

    def slow(directory: str, name: str, blob: bytes) -> None:
        sleep(0.6)
        put(directory, name, blob)

    monkeypatch.setattr(writing, "_write_file", slow)

    def body() -> None:
        with ncclkv.create("threads", timeout=3.0) as kv:
            kv.init(list(range(6)), [np.ones(3)] * 6)
            kv.save(tmp_path)
            kv.load(tmp_path)

    run_ranks(2, body)


def test_a_save_waits_for_ranks_that_still_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that no rank saves before all ranks have written the values they share."""
    from time import sleep

    from ncclkv.engine.fused_rule import FusedRule

    reset = FusedRule.reset

    def slow(self: FusedRule, *where: Any) -> None:
        late = current_thread() is not first[0]
        sleep(0.1 * late)
        reset(self, *where)
        sleep(0.4 * late)

    first: list[Thread] = []

    def body() -> None:
        with ncclkv.create("threads") as kv:
            if kv.rank == 0:
                first.append(current_thread())
            kv.init("w", np.zeros(5))
            kv.set_optimizer(SGD(learning_rate=1.0, momentum=1.0))
            kv.push("w", np.ones(5))
            kv.save(tmp_path)
            kv.load(tmp_path)
            sleep(0.3)  # by now the late rank has written zeros, and not yet the loaded values
            kv.save(tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr(FusedRule, "reset", slow)
        run_ranks(2, body)
    with ncclkv.create("local") as kv:
        kv.load(tmp_path)
        kv.push("w", np.zeros(5))
        assert kv.pull("w")[0] == -4, "the momentum is that of two ranks' step"
