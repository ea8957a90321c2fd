"""Files of MPI that ``ncclkv run`` lists and removes, and files that it leaves alone."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from ncclkv.cli import leftovers
from ncclkv.cli.leftovers import Leftovers

# The number of no process: a launcher's, whose descendants use no file.
NOBODY = 2**22 + 1


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Set folders for the files of ranks and launchers, and for the lists of runners."""
    shared, temporary, records = (tmp_path / name for name in ("shm", "tmp", "records"))
    for folder in (shared, temporary, records):
        folder.mkdir()
    monkeypatch.setattr(leftovers.tempfile, "gettempdir", lambda: str(records))
    return shared, temporary


def lists(places: tuple[Path, Path]) -> list[Path]:
    return list((places[0].parent / "records").iterdir())


def create(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(b"x" * 4096)
    return path


@contextmanager
def mapped(path: Path) -> Iterator[None]:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        yield


def test_files_that_the_job_used_are_removed(places: tuple[Path, Path]) -> None:
    old = create(places[0], "mpich_shm_old_0")
    noted = Leftovers(*places)
    shared = create(places[0], "mpich_shm_6d53a44_0")
    temporary = create(places[1], "hydra_hwloc_xmlfile_J4AR2m")
    other = create(places[0], "model")
    with mapped(shared), temporary.open():
        noted.update(os.getpid())
    noted.remove(NOBODY)
    assert [path.exists() for path in (shared, temporary)] == [False, False]
    assert [path.exists() for path in (old, other)] == [True, True]
    assert not lists(places)


def test_files_of_ranks_that_ended_at_once_are_removed(places: tuple[Path, Path]) -> None:
    noted = Leftovers(*places)
    path = create(places[0], "mpich_shm_6d53a44_0")
    noted.remove(NOBODY)
    assert not path.exists()


def test_files_of_other_jobs_stay(places: tuple[Path, Path]) -> None:
    noted = Leftovers(*places)
    other = create(places[0], "mpich_shm_1_0")
    with mapped(other):
        noted.update(NOBODY)
    noted.remove(NOBODY)
    assert other.exists(), "processes of another job were seen to use it"


def test_a_file_of_a_process_that_ends_during_the_search_is_removed(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = Leftovers(*places)
    path = create(places[0], "mpich_shm_1_0")
    with monkeypatch.context() as patched:
        patched.setattr(leftovers, "users", lambda path: [NOBODY])
        noted.update(os.getpid())
    noted.remove(os.getpid())
    assert not path.exists()


def test_a_file_without_a_known_user_is_kept(
    places: tuple[Path, Path],
) -> None:
    noted = Leftovers(*places)
    ours, unknown = create(places[0], "mpich_shm_1_0"), create(places[0], "mpich_shm_2_0")
    with mapped(ours):
        noted.update(os.getpid())
    noted.remove(NOBODY)
    assert (ours.exists(), unknown.exists()) == (False, True)


def test_a_file_in_use_is_kept_for_a_later_runner(places: tuple[Path, Path]) -> None:
    noted = Leftovers(*places)
    path = create(places[0], "mpich_shm_1_0")
    with mapped(path):
        noted.update(os.getpid())
        noted.remove(os.getpid())
        assert path.exists()
        assert len(lists(places)) == 1
    Leftovers(*places).remove(NOBODY)
    assert not path.exists()
    assert not lists(places)


def test_the_files_of_a_runner_that_was_killed_are_removed(places: tuple[Path, Path]) -> None:
    child = os.fork()
    if child == 0:
        noted = Leftovers(*places)
        with mapped(create(places[0], "mpich_shm_1_0")):
            noted.update(os.getpid())
        os._exit(0)
    os.waitpid(child, 0)
    assert (places[0] / "mpich_shm_1_0").exists()
    Leftovers(*places).remove(NOBODY)
    assert not (places[0] / "mpich_shm_1_0").exists()
    assert not lists(places)


def test_the_files_of_a_live_runner_are_kept(places: tuple[Path, Path]) -> None:
    other = Leftovers(*places)
    path = create(places[0], "mpich_shm_1_0")
    with mapped(path):
        other.update(os.getpid())
    Leftovers(*places).remove(NOBODY)
    assert path.exists()
    other.remove(NOBODY)
    assert not path.exists()


def test_a_list_cannot_name_other_files(places: tuple[Path, Path]) -> None:
    precious, outside = create(places[0], "model"), create(places[0].parent, "mpich_shm_1_0")
    forged = places[0].parent / "records" / "ncclkv-run-forged"
    forged.write_text(f"1 {precious}\n1 {outside}\nnonsense\n")
    Leftovers(*places).remove(NOBODY)
    assert precious.exists()
    assert outside.exists()
    assert not lists(places)


def test_a_link_in_place_of_a_file_is_kept(places: tuple[Path, Path]) -> None:
    noted = Leftovers(*places)
    target = create(places[0].parent, "target")
    link = places[0] / "mpich_shm_1_0"
    link.symlink_to(target)
    noted.remove(NOBODY)
    assert link.is_symlink()
    assert target.exists()


def test_an_unwritable_list_does_not_end_the_job(places: tuple[Path, Path]) -> None:
    noted = Leftovers(*places)
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), noted._list)
    path = create(places[0], "mpich_shm_1_0")
    with mapped(path):
        noted.update(os.getpid())
    noted.remove(NOBODY)
    assert not path.exists()
    assert not lists(places)


def test_a_list_that_is_not_yet_locked_is_kept(places: tuple[Path, Path]) -> None:
    begun = places[0].parent / "records" / "ncclkv-run-begun"
    begun.touch()
    Leftovers(*places).remove(NOBODY)
    assert lists(places) == [begun]


@pytest.mark.parametrize("what", ["gettempdir", "mkstemp"])
def test_without_a_folder_for_lists_files_are_removed(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def full(**options: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(leftovers.tempfile, what, full)
    noted = Leftovers(*places)
    path = create(places[0], "mpich_shm_1_0")
    with mapped(path):
        noted.update(os.getpid())
    noted.remove(NOBODY)
    assert not path.exists()
    assert not lists(places)


def test_processes_are_not_scanned_at_every_event(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = Leftovers(*places)
    create(places[1], "hydra_hwloc_xmlfile_J4AR2m")
    looks = []
    monkeypatch.setattr(leftovers, "users", lambda path: looks.append(path) or [])
    for _ in range(50):
        noted.update(os.getpid())
    assert len(looks) == 1
    noted.remove(NOBODY)
    assert len(looks) > 1, "the last look does not wait"


@pytest.mark.parametrize(("free", "warned"), [(1 << 12, False), (3 << 8, True)])
def test_little_free_space_gives_a_warning(
    free: int, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = SimpleNamespace(f_bavail=free, f_bfree=free, f_frsize=1 << 14, f_blocks=1 << 12)
    monkeypatch.setattr(leftovers.os, "statvfs", lambda path: room)
    said = leftovers.shortage(4, Path("/dev/shm"))
    assert bool(said) == warned
    if warned:
        assert "/dev/shm has 12 MiB free of 64 MiB; MPI takes up to 8 MiB a rank" in said
