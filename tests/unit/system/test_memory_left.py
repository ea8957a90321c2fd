"""Free memory of the machine and its control groups, from files in Linux's format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ncclkv.system.memory_left import MemoryLeft, address_space_left, memory_left

MEMINFO = "MemTotal:       24000000 kB\nMemFree:         1000 kB\nMemAvailable:    2000000 kB\n"
MACHINE = MemoryLeft(2000000 * 1024, "MemAvailable of /proc/meminfo")
GIB = 1 << 30
UNLIMITED_V1 = "9223372036854771712"

V2 = "/sys/fs/cgroup"
V1 = "/sys/fs/cgroup/memory"


def group_2(path: str, limit: str, used: int, inactive: int = 0) -> dict[str, str]:
    """Return the files of a control group of version 2."""
    return {
        f"{path}/memory.max": f"{limit}\n",
        f"{path}/memory.current": f"{used}\n",
        f"{path}/memory.stat": f"anon 5\ninactive_anon 77\ninactive_file {inactive}\n",
    }


def group_1(path: str, limit: str, used: int, inactive: int = 0) -> dict[str, str]:
    """Return the files of a control group of version 1."""
    return {
        f"{path}/memory.limit_in_bytes": f"{limit}\n",
        f"{path}/memory.usage_in_bytes": f"{used}\n",
        f"{path}/memory.stat": f"cache 5\ninactive_file 1\ntotal_inactive_file {inactive}\n",
    }


def seen(tmp_path: Path, groups: str, files: Mapping[str, str]) -> MemoryLeft | None:
    """Return the free memory on a system with these files."""
    for name, text in {"/proc/self/cgroup": groups, **files}.items():
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return memory_left(tmp_path)


def limit(path: str, nbytes: int, total: int) -> MemoryLeft:
    return MemoryLeft(nbytes, f"{path}, a limit of {total:,} bytes")


def test_without_files_the_free_memory_is_unknown(tmp_path: Path) -> None:
    assert memory_left(tmp_path) is None


def test_a_machine_without_groups(tmp_path: Path) -> None:
    assert seen(tmp_path, "", {"/proc/meminfo": MEMINFO}) == MACHINE


def test_a_machine_that_sets_no_limit(tmp_path: Path) -> None:
    files = {"/proc/meminfo": MEMINFO, **group_2(f"{V2}/a", "max", 5)}
    assert seen(tmp_path, "0::/a\n", files) == MACHINE


def test_the_highest_limit_of_version_1_is_no_limit(tmp_path: Path) -> None:
    files = {"/proc/meminfo": MEMINFO, **group_1(V1, UNLIMITED_V1, 5)}
    assert seen(tmp_path, "4:cpu,memory:/\n", files) == MACHINE


@pytest.mark.parametrize("mount", [V2, f"{V2}/unified"])
def test_a_container_of_version_2(tmp_path: Path, mount: str) -> None:
    files = {"/proc/meminfo": MEMINFO, **group_2(mount, str(GIB), 700, 200)}
    assert seen(tmp_path, "0::/\n", files) == limit(f"{mount}/memory.max", GIB - 500, GIB)


def test_the_tightest_group_up_the_hierarchy_counts(tmp_path: Path) -> None:
    files = {
        **group_2(f"{V2}/job", str(GIB), 900),
        **group_2(f"{V2}/job/step", "max", 800),
        **group_2(f"{V2}/job/step/task", str(2 * GIB), 5),
        **group_2(f"{V2}/other", "1", 0),
    }
    found = seen(tmp_path, "0::/job/step/task\n", files)
    assert found == limit(f"{V2}/job/memory.max", GIB - 900, GIB)


def test_a_container_of_version_1(tmp_path: Path) -> None:
    files = {"/proc/meminfo": MEMINFO, **group_1(f"{V1}/a/b", str(GIB), 500, 100)}
    found = seen(tmp_path, "9:name=systemd:/x\n4:cpu,memory:/a/b\n0::/\n", files)
    assert found == limit(f"{V1}/a/b/memory.limit_in_bytes", GIB - 400, GIB)


def test_a_container_whose_group_lies_at_the_mount_itself(tmp_path: Path) -> None:
    found = seen(tmp_path, "4:memory:/docker/0123\n", group_1(V1, str(GIB), 500))
    assert found == limit(f"{V1}/memory.limit_in_bytes", GIB - 500, GIB)


def test_a_group_of_other_controllers_sets_no_limit(tmp_path: Path) -> None:
    assert seen(tmp_path, "4:cpu:/\n", group_1(V1, str(GIB), 500)) is None


def test_cached_files_count_at_most_for_the_used_memory(tmp_path: Path) -> None:
    found = seen(tmp_path, "0::/\n", group_2(V2, "1000", 300, 400))
    assert found == limit(f"{V2}/memory.max", 1000, 1000)


def test_a_group_past_its_limit_leaves_nothing(tmp_path: Path) -> None:
    found = seen(tmp_path, "0::/\n", group_2(V2, "1000", 1300))
    assert found == limit(f"{V2}/memory.max", 0, 1000)


def test_this_machine_has_free_memory() -> None:
    found = memory_left()
    assert found is not None
    assert found.nbytes > 0


LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max address space         {}          unlimited            bytes
"""


@pytest.mark.parametrize(
    ("soft", "left"), [("4096000", 2048000), ("1000", 0), ("unlimited", None), (None, None)]
)
def test_a_limit_of_the_address_space(tmp_path: Path, soft: str | None, left: int | None) -> None:
    files = {} if soft is None else {"/proc/self/limits": LIMITS.format(soft)}
    seen(tmp_path, "", {"/proc/self/status": "Name:\tx\nVmSize:\t    2000 kB\n", **files})
    found = address_space_left(tmp_path)
    if left is None:
        assert found is None
    else:
        where = f"RLIMIT_AS (ulimit -v), a limit of {int(soft or 0):,} bytes"
        assert found == MemoryLeft(left, where)
