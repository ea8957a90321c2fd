"""Files of a checkpoint: their content, their replacement, and errors of the system."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is absent: the extra `checkpoint`")

import ncclkv
from ncclkv.arrays.dtypes import SUPPORTED, bfloat16
from ncclkv.checkpoint import write as writing
from ncclkv.checkpoint.manifest import from_plain, to_plain
from ncclkv.checkpoint.tensors import Tensor, decode, encode
from ncclkv.errors import CheckpointError, NotSupported
from ncclkv.store import checkpoints as verbs
from ncclkv.testing import run_ranks
from tests.unit.checkpoint import small_checkpoints


def test_written_arrays_are_read_back(tmp_path: Path) -> None:
    path = small_checkpoints.written(tmp_path)
    found = small_checkpoints.loaded(tmp_path)
    assert found is not None
    assert found.path == str(path)
    assert found.manifest == small_checkpoints.head()
    assert found.arrays.keys() == small_checkpoints.arrays().keys()
    for name, array in small_checkpoints.arrays().items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].tobytes() == array.tobytes()


def test_other_tools_can_read_the_files(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    path = small_checkpoints.written(tmp_path)
    assert sorted(os.listdir(path)) == [
        "checkpoint.json",
        "checkpoint.sha256",
        "tensors-0000.safetensors",
    ]
    check = subprocess.run(
        ["sha256sum", "-c", "checkpoint.sha256"], cwd=path, capture_output=True, check=False
    )
    assert check.returncode == 0, check.stderr
    said = json.loads((path / "checkpoint.json").read_text())
    assert (said["format"], said["version"], said["author"]) == ("ncclkv checkpoint", 1, "a test")
    assert [key["key"] for key in said["keys"]] == ["a", "b"]
    np.testing.assert_array_equal(load_file(path / said["files"][0]["name"])["value.0"], [1.5, 0])


@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 0, 3), (2, 3)])
@pytest.mark.parametrize("name", SUPPORTED)
def test_every_dtype_and_shape(name: str, shape: tuple[int, ...]) -> None:
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is absent: the extra `bf16`")
    dtype = bfloat16("a test") if name == "bfloat16" else np.dtype(name)
    bits = np.random.default_rng(0).integers(0, 2, (*shape, dtype.itemsize), np.uint8)
    array = bits.reshape(-1).view(dtype).reshape(shape)
    found = decode(encode({"x": array}), {"x": Tensor(shape, dtype)})["x"]
    assert (found.shape, found.dtype) == (shape, dtype)
    assert found.tobytes() == array.tobytes()


def test_layouts_that_are_not_in_c_order() -> None:
    array = np.arange(12.0).reshape(3, 4)
    views = {"t": array.T, "s": array[::2, ::-1], "c": (array * 1j).T}
    wanted = {name: Tensor(view.shape, view.dtype) for name, view in views.items()}
    for name, found in decode(encode(views), wanted).items():
        np.testing.assert_array_equal(found, views[name])


def test_many_arrays_go_to_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "FILE_BYTES", 9)
    work = writing.write(str(tmp_path), 7, small_checkpoints.fill, 1, "a test")
    assert len(list(work)) == 2, "whoever waits is told of each file"
    path = next(tmp_path.iterdir())
    assert len(list(path.glob("tensors-*"))) == 2
    found = small_checkpoints.loaded(tmp_path)
    assert found is not None
    assert found.arrays.keys() == small_checkpoints.arrays().keys()


def test_a_manifest_survives_json() -> None:
    head = small_checkpoints.head()
    assert from_plain(json.loads(json.dumps(to_plain(head)))) == head


def test_leftovers_of_a_killed_save_are_removed(tmp_path: Path) -> None:
    name = "step-000000001-save-000009"
    for left in (f".saving-{name}", f".removing-{name}"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "tensors-0000.safetensors").write_text("half of it")
    mine = [tmp_path / ".saving-mine", tmp_path / "notes"]
    for path in mine:
        path.mkdir()
    assert small_checkpoints.loaded(tmp_path) is None, "what is not complete does not count"
    path = small_checkpoints.written(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([*mine, path])


def test_save_numbers_continue(tmp_path: Path) -> None:
    names = [small_checkpoints.written(tmp_path, step, keep=2).name for step in (10**9, 3, 3)]
    assert names == [
        "step-1000000000-save-000001",
        "step-000000003-save-000002",
        "step-000000003-save-000003",
    ]
    assert sorted(os.listdir(tmp_path)) == names[1:]
    found = small_checkpoints.loaded(tmp_path)
    assert found is not None
    assert Path(found.path).name == names[2]


def test_all_is_synced_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the order of syncs: after a loss of power, a name may exist without its content."""
    first = small_checkpoints.written(tmp_path / "in")
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_sync(descriptor: int) -> None:
        calls.append("sync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def note_rename(old: str, new: str) -> None:
        calls.append(f"rename {Path(old).name} {Path(new).name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note_rename)
    path = small_checkpoints.written(tmp_path / "in", keep=1)
    assert calls == [
        "sync tensors-0000.safetensors",
        "sync checkpoint.json",
        "sync checkpoint.sha256",
        f"sync .saving-{path.name}",
        f"rename .saving-{path.name} {path.name}",
        "sync in",
        f"rename {first.name} .removing-{first.name}",
    ]
    calls.clear()
    small_checkpoints.written(tmp_path / "a" / "b")
    assert calls[:2] == [f"sync {tmp_path.name}", "sync a"], "the new directories, too"


def test_an_old_checkpoint_that_cannot_be_removed_gives_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = small_checkpoints.written(tmp_path)

    def fail(path: str) -> None:
        raise OSError(errno.EIO, "broken", path)

    monkeypatch.setattr(shutil, "rmtree", fail)
    small_checkpoints.written(tmp_path, keep=1)
    (warning,) = caplog.messages
    assert warning.startswith(f"{first} is no longer needed and cannot be removed (")
    assert "broken" in warning
    found = small_checkpoints.loaded(tmp_path)
    assert found is not None
    assert found.path.endswith("save-000002")


def test_directories_are_made(tmp_path: Path) -> None:
    path = small_checkpoints.written(tmp_path / "a" / "b")
    assert path.parent == tmp_path / "a" / "b"


def test_two_jobs_cannot_save_into_one_directory(tmp_path: Path) -> None:
    before = small_checkpoints.written(tmp_path)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match="another process is saving into it"):
            small_checkpoints.written(tmp_path)
    finally:
        os.close(descriptor)
    assert list(tmp_path.iterdir()) == [before]
    small_checkpoints.written(tmp_path)


# Saves that the system refuses, on every rank


def fails_to_save(directory: Path, *words: str, ranks: int = 2) -> None:
    """Save on some ranks; check that all raise the error and can go on."""

    def body() -> None:
        with ncclkv.create("threads", timeout=20) as kv:
            kv.init("w", np.arange(50_000.0))
            with pytest.raises(CheckpointError) as caught:
                kv.save(directory)
            for word in ("save on rank 0 of 2 (host ", str(directory), *words):
                assert word in str(caught.value), caught.value
            kv.push("w", np.ones(50_000))
            assert kv.pull("w")[0] == ranks

    run_ranks(ranks, body)


@contextmanager
def file_size_limit(nbytes: int) -> Iterator[None]:
    """Limit the size of this process's files."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_size_limit_fails_the_save(tmp_path: Path) -> None:
    before = small_checkpoints.written(tmp_path)
    with file_size_limit(100_000):
        fails_to_save(tmp_path, "tensors-0000.safetensors: File too large")
    assert list(tmp_path.iterdir()) == [before], "half a checkpoint is no use"


def test_a_full_disk_fails_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = small_checkpoints.written(tmp_path)

    def full(path: str, mode: str) -> Any:
        return open("/dev/full", "wb")

    monkeypatch.setattr(writing, "open", full, raising=False)
    fails_to_save(tmp_path, "tensors-0000.safetensors: No space left on device")
    assert list(tmp_path.iterdir()) == [before]


@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir"])
def test_an_io_error_fails_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    before = small_checkpoints.written(tmp_path)

    def fail(*arguments: Any) -> None:
        where = (str(tmp_path),) if call != "fsync" else ()
        raise OSError(errno.EIO, os.strerror(errno.EIO), *where)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        fails_to_save(tmp_path, "Input/output error")
    assert list(tmp_path.iterdir()) == [before]


def test_a_read_only_directory_fails_the_save() -> None:
    root = os.geteuid() == 0
    with TemporaryDirectory(dir="/tmp") as theirs:  # other users may not read pytest's folders
        Path(theirs).chmod(0o555)
        if root:  # root may write everywhere
            os.seteuid(65534)
        try:
            fails_to_save(Path(theirs), "Permission denied")
        finally:
            if root:
                os.seteuid(0)


def test_without_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)

    def body() -> None:
        with ncclkv.create("threads") as kv:
            kv.init("w", np.zeros(2))
            for verb in (kv.save, kv.load):
                with pytest.raises(NotSupported, match=r"pip install 'ncclkv\[checkpoint\]'"):
                    verb(tmp_path)
            assert kv.pull("w")[0] == 0

    run_ranks(2, body)


def test_the_environment_names_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLKV_CHECKPOINT", str(tmp_path / "here"))
    with ncclkv.create("local") as kv:
        kv.init("w", np.zeros(2))
        path = kv.save(step=4)
        assert Path(path).parent == tmp_path / "here"
        assert kv.load() == verbs.Loaded(4, None, path)
