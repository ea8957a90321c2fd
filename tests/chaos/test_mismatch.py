"""Ranks whose calls differ: every rank soon names both calls, with their lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness.job import Job, start
from tests.harness.slow import stretched

PROGRAM = Path(__file__).parent / "programs" / "mismatched_calls.py"
SECONDS = stretched(2.0)
"""Seconds from the common start of all ranks to the error on each."""

JOBS = [
    pytest.param((2, {}), id="2"),
    pytest.param((3, {"NCCLKV_NODE_MEMORY": "messages"}), id="3-messages"),
    pytest.param((4, {"NCCLKV_RANKS_PER_NODE": "2"}), id="4-on-2-nodes"),
]

CALLS = {
    "swapped_pushes": ("push('a')", "push('b')"),
    "missing_push": ("push('b')", "pull('a', 'b')"),
    "missing_key_of_a_list": ("push('a', 'b')", "push('a')"),
    "missing_push_in_a_group": ("end of a group('a', 'b')", "end of a group('a')"),
    "other_keys_of_an_overlap": ("overlap('a', 'b')", "overlap('a')"),
    "missing_push_in_an_overlap": ("end of an overlap('a', 'b')", "early end of an overlap('a')"),
    "other_key_missing_in_an_overlap": (
        "early end of an overlap('b')",
        "early end of an overlap('a')",
    ),
    "overlap_against_push": ("overlap('a', 'b', 'large', ... 4", "push('a', 'b', 'large', ... 4"),
    "extra_pull_on_rank_0": ("push('b')", "pull('a')"),
    "another_key_of_the_same_size": ("pushpull('a')", "pushpull('b')"),
    "another_priority": ("push('a', 'b')", "push('a', 'b', priority=1)"),
    "wrong_shape": ("push('a')", "barrier()"),
    "wrong_dtype": ("push('a')", "barrier()"),
    "fewer_steps": ("pushpull('a')", "barrier()"),
    "fewer_steps_and_close": ("pushpull('a')", "close()"),
    "barrier_against_push": ("pushpull('a')", "barrier()"),
    "updater_against_push": ("pushpull('a')", "set_updater()"),
    "reset_against_pull": ("pull('a')", "reset("),
    "large_values": ("pushpull('huge')", "pushpull('large')"),
    "a_key_among_many": ("push('k0', 'k1', 'k2', ... 100 keys)", "push('k0', 'k1', 'k2', ... 99"),
    "through_a_function_of_the_programs": ("push('a')", "push('b')"),
}
"""The call of most ranks, and the call of the rank that differs."""

SPECS = {
    "key_sets_at_init": ("rank 0 has key 'z': float64 (1000,) sum", "rank 1 has key 'y': "),
    "shapes_at_init": (
        "rank 0 has key 'x': float64 (1000,)",
        "rank 1 has key 'x': float64 (1001,)",
    ),
}
"""Arguments of the ranks at init."""

CALLED = re.compile(r"rank (\d) called ([a-z_ ]+)\((.*?)\) at \S*mismatched_calls\.py:(\d+)")

LAST_CALLED = re.compile(
    r"rank \d on \S+ \(pid \d+\) last called pushpull\('a'\) at \S*mismatched_calls\.py:\d+"
)


@dataclass(frozen=True)
class Outcome:
    """The result of a scenario on one rank; `untouched`: no out was written."""

    rank: int
    seconds: float
    untouched: bool
    said: str


Outcomes = dict[str, list[Outcome]]


@pytest.fixture(scope="module", params=JOBS)
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Run all scenarios in one job: a broken store does not affect the next store."""
    ranks, variables = request.param
    mark = tmp_path_factory.mktemp("job") / "mark"
    ended = start(PROGRAM, "caught", ranks=ranks, mark=mark, limit=40, **variables)
    assert ended.code == 0, ended.err
    assert not ended.err, ended.err
    found: Outcomes = {}
    for line in ended.out.splitlines():
        name, rank, seconds, untouched, said = line.split("|", 4)
        outcome = Outcome(int(rank), float(seconds), untouched == "True", said)
        found.setdefault(name, []).append(outcome)
    assert {len(each) for each in found.values()} == {ranks}
    return found


def on_all_ranks(found: list[Outcome]) -> list[Outcome]:
    """Return the result of a scenario, equal and in time on every rank."""
    assert sorted(outcome.rank for outcome in found) == list(range(len(found)))
    for outcome in found:
        assert outcome.seconds < SECONDS, outcome
    return found


@pytest.mark.parametrize("name", CALLS)
def test_every_rank_names_both_calls(name: str, outcomes: Outcomes) -> None:
    lines = PROGRAM.read_text().splitlines()
    usual, odd = CALLS[name]
    who = 0 if "rank_0" in name else 1
    for outcome in on_all_ranks(outcomes[name]):
        said = outcome.said
        assert said.startswith("OrderMismatch: "), outcome
        assert f"rank {who} called {odd}" in said, outcome
        assert re.search(rf"rank [^{who}] called {re.escape(usual)}", said), outcome
        assert "make the same calls in the same order on all ranks" in said, outcome
        assert outcome.untouched, outcome
        called = CALLED.findall(said)
        assert len(called) == 2, outcome
        for _, verb, _, number in called:
            line = lines[int(number) - 1]
            assert f".{verb.rpartition(' ')[2]}(" in line, f"line {number}: {line}"


def test_the_key_that_only_some_ranks_push_is_named(outcomes: Outcomes) -> None:
    for outcome in on_all_ranks(outcomes["a_key_among_many"]):
        assert re.search(r"only rank \d has key 'k57'", outcome.said), outcome


@pytest.mark.parametrize("name", SPECS)
def test_every_rank_shows_both_specs(name: str, outcomes: Outcomes) -> None:
    for outcome in on_all_ranks(outcomes[name]):
        assert outcome.said.startswith("SpecMismatch: "), outcome
        for words in SPECS[name]:
            assert words in outcome.said, outcome


def test_two_stores_that_ranks_enter_in_another_order(outcomes: Outcomes) -> None:
    for outcome in on_all_ranks(outcomes["two_stores_crossed"]):
        assert outcome.said.startswith("OrderMismatch: "), outcome
        assert "another store" in outcome.said, outcome
        assert LAST_CALLED.search(outcome.said), outcome
        assert len(set(re.findall(r"rank (\d) on ", outcome.said))) == 2, outcome


def test_two_stores_that_a_rank_enters_late_in_another_order(tmp_path: Path) -> None:
    """Cross stores when the other rank requests reports rarely: no page is common."""
    late = "two_stores_crossed_late"
    variables = {"NCCLKV_NODE_MEMORY": "messages"}
    ended = start(PROGRAM, "caught", late, ranks=2, mark=tmp_path / "mark", limit=40, **variables)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert sorted(line.split("|")[1] for line in lines) == ["0", "1"], ended.out
    for line in lines:
        assert "|OrderMismatch: " in line, line
        assert "waits for this rank in another store: pushpull('a')" in line, line
        assert float(line.split("|")[2]) < 4.5 + SECONDS, line


def test_a_store_that_one_rank_alone_creates(outcomes: Outcomes) -> None:
    lines = PROGRAM.read_text().splitlines()
    for outcome in on_all_ranks(outcomes["extra_create"]):
        assert outcome.said.startswith("OrderMismatch: "), outcome
        (number,) = {*re.findall(r"create\(\) at \S*mismatched_calls\.py:(\d+)", outcome.said)}
        assert "ncclkv.create(" in lines[int(number) - 1], outcome
        assert "(key 'a') waits for rank 1, which waits for this rank" in outcome.said, outcome
        assert LAST_CALLED.search(outcome.said), outcome


@pytest.mark.parametrize(
    ("name", "error"),
    [("another_key_of_the_same_size", "OrderMismatch"), ("shapes_at_init", "SpecMismatch")],
)
def test_an_uncaught_error_ends_the_job(job: Job, name: str, error: str) -> None:
    ended = job("mismatched_calls.py", name, ranks=3)
    assert ended.code != 0, ended.err
    assert re.match(
        rf"ncclkv: rank \d of 3 on \S+ \(pid \d+\) failed, ending the job: {error}: ", ended.err
    ), ended.err


@pytest.mark.parametrize(
    ("name", "error"),
    [("push_of_a_wrong_shape", "ShapeMismatch"), ("push_of_a_wrong_dtype", "DTypeMismatch")],
)
def test_a_wrong_call_on_one_rank_ends_the_job_with_its_error(
    job: Job, name: str, error: str
) -> None:
    ended = job("mismatched_calls.py", name, ranks=3)
    assert ended.code != 0, ended.err
    assert ended.seconds < 5, ended.err
    assert ended.words[0].startswith("ncclkv: rank 1 of 3 on "), ended.err
    assert f"failed, ending the job: {error}: rank 1 of 3: push of key 'a': " in ended.words[0]
    assert len(ended.words) == 1, "ranks that were only told say nothing"
