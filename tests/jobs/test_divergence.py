"""A rank whose copy of a value is overwritten: found in every placement, named, or repaired."""

from __future__ import annotations

import pytest

from tests.harness.extent import some_or_all
from tests.harness.slow import stretched
from tests.jobs.conftest import Job

SECONDS = stretched(5.0)
"""Seconds from the overwrite to the end of the job."""

PLACEMENTS = [
    ("root", "none", "0"),
    ("root", "sgd", "0"),
    ("every_rank", "function", "0"),
    ("every_rank", "none", "2"),
    ("every_rank", "sgd", "2"),
]
"""The updater's placement, the updater, and ranks a node: several nodes where weights are shared.
"""


def size_of(nodes: str) -> int:
    """Return the number of ranks: two whole nodes, or one node of which two ranks agree."""
    return 3 if nodes == "0" else 4


@pytest.mark.parametrize(
    ("update_on", "updater", "nodes"), some_or_all(PLACEMENTS[::2], PLACEMENTS)
)
def test_the_job_ends_and_names_key_and_ranks(
    job: Job, update_on: str, updater: str, nodes: str
) -> None:
    several = {"NCCLKV_RANKS_PER_NODE": nodes} if nodes != "0" else {}
    size = size_of(nodes)
    ended = job("divergence.py", update_on, updater, "raise", ranks=size, **several)
    assert ended.code != 0, ended.err
    assert ended.seconds < SECONDS, ended.err
    who = "rank 2 has other bits than ranks 0, 1"
    if several:
        who = "ranks 2, 3 have other bits than ranks 0, 1"
    # Rank 2's own copy is overwritten at the twelfth pull; every fifth flush is compared.
    said = f"of {size}: after 15 flushes values differ: of key 'b' {who} (held and pulled); "
    assert said in ended.words[0], ended.err
    assert "key 'w'" not in ended.err


@pytest.mark.parametrize(
    ("update_on", "updater", "nodes"), some_or_all(PLACEMENTS[1:4], PLACEMENTS)
)
def test_the_job_continues_with_the_roots_values(
    job: Job, update_on: str, updater: str, nodes: str
) -> None:
    several = {"NCCLKV_RANKS_PER_NODE": nodes} if nodes != "0" else {}
    size = size_of(nodes)
    ended = job("divergence.py", update_on, updater, "repair", ranks=size, **several)
    assert ended.code == 0, ended.err
    total = size if updater == "none" else -20 * size
    expected = [f"rank {rank}: {total}, 0, 1" for rank in range(size)]
    assert sorted(ended.out.splitlines()) == expected
    lines = [line for line in ended.err.splitlines() if "values differ" in line]
    assert len(lines) == 1, ended.err
    assert "all ranks now have rank 0's values" in lines[0]
    assert lines[0].endswith("not the state of its updater step") == (updater == "function")
