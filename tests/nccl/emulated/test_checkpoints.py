"""Layer 3b: checkpoints between numbers of ranks, and between devices and hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nccl.emulated import jobs

pytest.importorskip("safetensors", reason="safetensors is not installed")
pytestmark = pytest.mark.limit(200)

STORES = [
    *(("nccl", 2, "every_rank"), ("nccl", 1, "every_rank")),
    *(("nccl", 2, "sharded"), ("dist_sync", 2, "root")),
]
"""Name, ranks and placement of the stores that save and load."""


def run(do: str, store: tuple[str, int, str], source: Path, target: Path) -> tuple[str, ...]:
    """Run the program, and return its digests, which must be equal on all ranks."""
    name, ranks, placement = store
    ended = jobs.start(
        "checkpoints.py",
        *(do, name, placement, str(source), str(target)),
        ranks=ranks,
        mark=target.with_suffix(".mark"),
        limit=60,
    )
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    found = [line for lines in jobs.lines(ended).values() for line in lines]
    assert len(found) == ranks, ended.out
    saved, later = {line[0] for line in found}, {line[1] for line in found}
    assert len(saved) == len(later) == 1, f"the ranks differ: {found}"
    return (*saved, *later, max(line[2] for line in found))


@pytest.mark.parametrize("saver", STORES, ids=str)
def test_a_run_goes_on_elsewhere(saver: tuple[str, int, str], tmp_path: Path) -> None:
    target = tmp_path / "saved"
    begun = run("begin", saver, target, target)
    for number, other in enumerate(store for store in STORES if store != saver):
        again = run("go-on", other, target, tmp_path / f"again-{number}")
        assert again == begun, f"values, values later, and files of {other}"
