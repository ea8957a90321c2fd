"""Ranks that are paused at random: no pause is taken for a difference between the ranks' calls.

``NCCLKV_TEST_PAUSES=60`` pauses them for a minute on each way to share memory.
"""

from __future__ import annotations

import os
import re

import pytest

from tests.harness.job import Job

SECONDS = float(os.environ.get("NCCLKV_TEST_PAUSES", "") or 20)

# The last step begins in time, and each of its waits may last for some pauses.
LIMIT = SECONDS + 40

WAYS = [
    pytest.param({}, id="shared-memory"),
    pytest.param({"NCCLKV_RANKS_PER_NODE": "1"}, id="1-rank-per-node"),
    pytest.param({"NCCLKV_NODE_MEMORY": "messages"}, id="messages"),
]


@pytest.mark.limit(LIMIT + 10)
@pytest.mark.parametrize("variables", WAYS)
def test_a_valid_program_with_several_stores_ends_well(job: Job, variables: dict[str, str]) -> None:
    ended = job("paused_ranks.py", str(SECONDS), ranks=4, limit=LIMIT, **variables)
    assert ended.code == 0, ended.err
    assert not ended.err, ended.err
    assert re.fullmatch(r"\d+ steps\n", ended.out), ended.out
