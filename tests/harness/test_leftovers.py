"""Removal of shared-memory files after a run."""

from __future__ import annotations

import mmap

from tests.harness import leftovers


def test_only_new_unused_files_are_removed(tmp_path):
    old, unused, used, other = (
        tmp_path / name for name in ("mpich_shm_1", "mpich_shm_2", "mpich_shm_3", "model")
    )
    old.write_bytes(b"x" * 4096)
    before = leftovers.present(tmp_path)
    for path in (unused, used, other):
        path.write_bytes(b"x" * 4096)
    with used.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        leftovers.sweep(before, tmp_path)
    assert set(tmp_path.iterdir()) == {old, used, other}
