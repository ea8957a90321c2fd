"""The content of ``checkpoint.json``: allowed values, limits of its length, and fallbacks."""

from __future__ import annotations

import gc
import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is absent: the extra `checkpoint`")

import ncclkv
from ncclkv.checkpoint import strict_json
from ncclkv.checkpoint.manifest import size_limit
from ncclkv.checkpoint.strict_json import DamagedCheckpoint
from ncclkv.errors import CheckpointError
from ncclkv.testing import run_ranks
from tests.harness.slow import stretched
from tests.unit.checkpoint import small_checkpoints

MIB = 2**20


def refused(path: Path, *words: str) -> None:
    with pytest.raises(DamagedCheckpoint) as caught:
        small_checkpoints.loaded(path)
    for word in words:
        assert word in str(caught.value), caught.value


def test_swapped_directory_names_are_refused(tmp_path: Path) -> None:
    old, new = (
        small_checkpoints.written(tmp_path, step=5),
        small_checkpoints.written(tmp_path, step=9),
    )
    aside = tmp_path / "aside"
    old.rename(aside)
    new.rename(tmp_path / "step-000000005-save-000001")
    aside.rename(tmp_path / "step-000000009-save-000002")
    refused(tmp_path, "it is of step 5, and its directory is named as of step 9")
    refused(tmp_path / "step-000000005-save-000001", "it is of step 9", "of step 5")
    aside = (tmp_path / "step-000000009-save-000002").rename(tmp_path / "best")
    found = small_checkpoints.loaded(aside)
    assert found is not None
    assert found.manifest.step == 5


@pytest.mark.parametrize("bomb", [b"[],", b'{"a":[]},', b"[[[[[[]]]]]],"])
def test_a_manifest_of_many_lists_is_refused_before_it_is_parsed(
    tmp_path: Path, bomb: bytes
) -> None:
    path = small_checkpoints.written(tmp_path)
    text = (path / "checkpoint.json").read_bytes()
    many = bomb * (24 * MIB // len(bomb))
    small_checkpoints.sign(path, text.replace(b'"extra":[1,null]', b'"extra":[' + many[:-1] + b"]"))
    tracemalloc.start()
    began = time.monotonic()
    try:
        refused(path, "lists and objects; the limit is 524,288")
        assert tracemalloc.get_traced_memory()[1] < 60 * MIB
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < stretched(5)


def test_the_length_limit_of_a_manifest_grows_with_the_keys(tmp_path: Path) -> None:
    path = small_checkpoints.written(tmp_path)
    with open(path / "checkpoint.json", "r+b") as file:
        file.truncate(33 * MIB)
    refused(path, "checkpoint.json has 34,603,008 bytes; the limit is 33,554,432")
    with open(path / "checkpoint.json", "r+b") as file:
        file.truncate(17 * MIB)
    with ncclkv.create("local") as kv:
        kv.init("w", np.zeros(2))
        with pytest.raises(CheckpointError, match=r"17,825,792 bytes; the limit is 16,778,246"):
            kv.load(path)
    assert size_limit(["w", "longer"]) == 16 * MIB + 2 * 1024 + 6 * 7


def test_extra_data_past_the_limit_is_refused(tmp_path: Path) -> None:
    def body() -> None:
        with ncclkv.create("threads") as kv:
            kv.init("w", np.zeros(2))
            with pytest.raises(CheckpointError) as caught:
                kv.save(tmp_path, extra="x" * 5 * MIB)
            assert "checkpoint.json cannot be written: it has 5,24" in str(caught.value)
            assert "give a smaller extra" in str(caught.value)
            kv.push("w", np.ones(2))
            assert kv.pull("w")[0] == 2
            kv.save(tmp_path, extra="x" * 3 * MIB)

    run_ranks(2, body)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000-save-000001"]


def test_long_key_names_are_loaded(tmp_path: Path) -> None:
    names = ["é" * MIB, "k" * MIB]
    for known in (True, False):
        with ncclkv.create("local") as kv:
            if known:
                kv.init(names, [np.ones(1), np.ones(1)])
                kv.save(tmp_path)
            kv.load(tmp_path)
            assert kv.keys() == names


@pytest.mark.parametrize("enabled", [True, False])
def test_json_is_parsed_with_the_collector_off(
    monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    seen = []

    def note(text: str) -> int:
        seen.append(gc.isenabled())
        return int(text)

    monkeypatch.setattr(strict_json, "_whole", note)
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        assert strict_json.loads(b"[3]", 1000) == [3]
        with pytest.raises(DamagedCheckpoint):
            strict_json.loads(b"[3", 1000)
        assert seen == [False, False]
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("run", ["", "f" * 31, "g" * 32])
def test_invalid_run_names_are_refused(tmp_path: Path, run: str) -> None:
    path = small_checkpoints.written(tmp_path)
    small_checkpoints.change(path, lambda made: made.update(run=run))
    refused(path, "is not the id of a run")


def three(directory: Path, *, damaged: int) -> list[Path]:
    """Save three times, and damage the newest saves."""
    paths = []
    with ncclkv.create("local") as kv:
        kv.init("w", np.zeros(2))
        for step in range(3):
            kv.reset("w", np.full(2, float(step)))
            paths.append(Path(kv.save(directory, step=step, keep=3)))
    for path in paths[3 - damaged :]:
        tensors = path / "tensors-0000.safetensors"
        tensors.write_bytes(tensors.read_bytes()[:-1])
    return paths


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_fallback_loads_the_newest_intact_checkpoint(
    tmp_path: Path, damaged: int, caplog: pytest.LogCaptureFixture
) -> None:
    paths = three(tmp_path, damaged=damaged)

    def body() -> None:
        with ncclkv.create("threads") as kv:
            loaded = kv.load(tmp_path, fallback=True)
            assert loaded is not None
            assert (loaded.step, loaded.path) == (2 - damaged, str(paths[2 - damaged]))
            assert kv.pull("w").tolist() == [2 - damaged] * 2

    run_ranks(2, body)
    assert len(caplog.messages) == (damaged > 0)
    if damaged:
        assert str(paths[2]) in caplog.text
        assert f"{paths[2 - damaged]} is loaded instead" in caplog.text


def test_fallback_without_an_intact_checkpoint_fails(tmp_path: Path) -> None:
    paths = three(tmp_path, damaged=1)

    def body() -> None:
        with ncclkv.create("threads") as kv:
            for given in (None, 1, "yes"):
                wrong: dict[str, Any] = {"fallback": given}
                with pytest.raises(ncclkv.errors.UsageError, match="fallback="):
                    kv.load(tmp_path, **wrong)
            with pytest.raises(CheckpointError, match="an older checkpoint is intact"):
                kv.load(tmp_path)
            kv.init("other", np.zeros(2))
            with pytest.raises(CheckpointError, match="other"):
                kv.load(tmp_path, fallback=True)
        with ncclkv.create("threads") as kv:
            kv.barrier()
            if kv.rank == 0:
                for path in paths[:2]:
                    (path / "checkpoint.json").unlink()
            kv.barrier()
            with pytest.raises(CheckpointError, match="none of the 2 older checkpoints"):
                kv.load(tmp_path, fallback=True)
            assert kv.load(tmp_path / "none", required=False, fallback=True) is None

    run_ranks(2, body)


def test_the_manifest_names_the_run_that_saved_it(tmp_path: Path) -> None:
    made = [
        json.loads((path / "checkpoint.json").read_text()) for path in three(tmp_path, damaged=0)
    ]
    assert len({head["run"] for head in made}) == 1
