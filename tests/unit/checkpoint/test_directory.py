"""Other entries of a checkpoint directory: links, files, checkpoints of another store."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is absent: the extra `checkpoint`")

import ncclkv
from ncclkv.errors import CheckpointError
from ncclkv.testing import run_ranks
from tests.unit.checkpoint import small_checkpoints


def a_file(path: Path, archive: Path) -> None:
    path.write_text("mine")


def a_link_to_a_directory(path: Path, archive: Path) -> None:
    path.symlink_to(archive)


def a_link_to_nothing(path: Path, archive: Path) -> None:
    path.symlink_to(archive / "gone")


STRAY = [a_file, a_link_to_a_directory, a_link_to_nothing]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Return the path of a checkpoint on another disk."""
    return small_checkpoints.written(tmp_path / "archive")


@pytest.mark.parametrize("make", STRAY)
@pytest.mark.parametrize("prefix", ["", ".saving-", ".removing-"])
def test_links_and_files_in_place_of_directories_are_unlinked(
    tmp_path: Path, archive: Path, make: Callable[[Path, Path], None], prefix: str
) -> None:
    where = tmp_path / "in"
    where.mkdir()
    make(where / f"{prefix}step-000000003-save-000001", archive)
    kept = {path: path.read_bytes() for path in archive.iterdir()}
    for _ in range(3):
        path = small_checkpoints.written(where, keep=1)
        assert list(where.iterdir()) == [path]
    assert {path: path.read_bytes() for path in archive.iterdir()} == kept


def test_leftovers_that_cannot_be_removed_stop_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left = tmp_path / ".removing-step-000000003-save-000001"
    left.mkdir()

    def fail(path: str) -> None:
        raise OSError(errno.EACCES, "not yours")  # `rmtree` gives no path either

    monkeypatch.setattr(shutil, "rmtree", fail)
    paths = [small_checkpoints.written(tmp_path, keep=2) for _ in range(2)]
    assert set(tmp_path.iterdir()) == {left, *paths}
    words = f"{left} is no longer needed and cannot be removed (not yours); remove it by hand"
    assert caplog.messages == [words, words]


def test_a_sync_error_after_the_rename_says_that_the_checkpoint_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, synced = os.fsync, []

    def fail_at_last(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        if synced[-1] == str(tmp_path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_at_last)
    with pytest.raises(CheckpointError, match=r"save-000001 is complete, but .*Input/output"):
        small_checkpoints.written(tmp_path)
    found = small_checkpoints.loaded(tmp_path)
    assert found is not None


def saving(directory: Path, *, load: bool = False, times: int = 1, states: bool = False) -> None:
    """Save from a new store of two ranks."""

    def body() -> None:
        with ncclkv.create("threads") as kv:
            kv.init("w", np.zeros(2))
            kv.set_optimizer(ncclkv.optimizer.SGD(momentum=0.5))
            if load:
                kv.load(directory)
            for _ in range(times):
                if states:
                    kv.save_optimizer_states(str(directory))
                else:
                    kv.save(directory)

    run_ranks(2, body)


def test_checkpoint_of_another_store_gives_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saving(tmp_path, times=3)
    saving(tmp_path, load=True, times=3)
    saving(tmp_path, states=True, times=2)
    assert caplog.messages == []
    saving(tmp_path, times=3)
    (warning,) = caplog.messages
    assert warning.startswith(f"{tmp_path}/step-000000000-save-000006 is the newest checkpoint")
    assert "this store has not loaded it" in warning
    caplog.clear()
    saving(tmp_path, states=True)
    assert len(caplog.messages) == 1
    assert "-states is the newest" in caplog.messages[0]


def test_two_stores_save_in_turn_into_one_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ncclkv.create("local") as one, ncclkv.create("local") as two:
        for kv in (one, two):
            kv.init("w", np.zeros(2))
        for _ in range(3):
            for kv in (one, two):
                kv.save(tmp_path)
    runs = {message.partition("(run ")[2][:32] for message in caplog.messages}
    assert len(caplog.messages) == len(runs) == 2, "each of the other, once"


def test_a_damaged_checkpoint_is_of_an_unknown_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saving(tmp_path)
    (path,) = tmp_path.iterdir()
    small_checkpoints.change(path, lambda made: made.pop("run"))
    saving(tmp_path)
    assert "(run unknown)" in caplog.text


@pytest.mark.parametrize("verb", ["save", "load", "save_optimizer_states", "load_optimizer_states"])
def test_a_file_in_place_of_the_directory(verb: str, tmp_path: Path) -> None:
    """MXNet writes a file of states, whose name a program may have kept."""
    path = tmp_path / "model.states"
    path.write_text("mine")
    with ncclkv.create("local") as kv:
        kv.set_optimizer(ncclkv.optimizer.SGD(momentum=0.5))
        kv.init("w", np.ones(2))
        with pytest.raises(CheckpointError, match="lie in a directory: give another name"):
            getattr(kv, verb)(str(path))
    assert path.read_text() == "mine"
