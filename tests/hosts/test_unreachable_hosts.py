"""A host that is cut off is named as such, and not as an error of the program."""

from __future__ import annotations

import re

import pytest

from tests.harness.slow import stretched
from tests.hosts.lab.jobs import Jobs

pytestmark = pytest.mark.limit(60)

GONE = "the host or the link to it is gone"


def on_the_near_side(jobs: Jobs, *, one_way: bool = False) -> list[str]:
    """Cut off the last host, and return the errors of the other hosts' ranks at the deadline."""
    *others, last = jobs.network.hosts

    def cut() -> None:
        if one_way:
            jobs.network.drop(last, *others)
        else:
            jobs.network.cut(last)

    ended = jobs.program("steps.py", "none", "0", "1000000", fault=cut, NCCLKV_TIMEOUT="4")
    assert ended.seconds < stretched(12.0), ended.err
    told = [words for rank, words in enumerate(jobs.told()) if jobs.host_of(rank) != last.name]
    found = [words for words in told if "CommTimeout: " in words]
    assert found, told
    return found


def test_a_host_whose_ranks_do_not_answer(two_by_two: Jobs) -> None:
    for words in on_the_near_side(two_by_two):
        assert f"no rank of node2 (2, 3) answers: {GONE}, or all its ranks are stopped" in words
        assert "make the same calls" not in words


def test_a_link_that_loses_messages_one_way(two_by_two: Jobs) -> None:
    """Check a cut host that receives nothing, while its messages may still arrive."""
    for words in on_the_near_side(two_by_two, one_way=True):
        unheard = rf"no rank of node2 \(2, 3\) answers: {GONE}, or"
        heard = "wait for each other, and have made the same calls: messages between them are lost"
        unanswered = "no request for reports of rank [23] was answered, though .*: some are lost"
        network = "look at the network of node1, node2"
        assert re.search(rf"{unheard}|({heard}|{unanswered}), .*; {network}", words), words
        assert "make the same calls" not in words


def test_a_host_with_one_rank_that_does_not_answer(three_by_one: Jobs) -> None:
    for words in on_the_near_side(three_by_one):
        assert f"rank 2, the only one on node3, does not answer: {GONE}, or the rank is" in words
        assert "make the same calls" not in words
        assert not re.search(r"node2 .*does not answer", words)
