"""Faults on one of several hosts, and of the network between them.

Each surviving rank raises in time, and names the failed rank or host. The job ends, and none of its
processes is left on any host.
"""

from __future__ import annotations

import re
import time

import pytest

from tests.harness.job import Ended
from tests.harness.slow import stretched
from tests.hosts.lab.jobs import Jobs

pytestmark = pytest.mark.limit(60)

STEPS = "20"
FOR_EVER = "1000000"
TIMEOUT = 3.0
SLACK = 6.0
"""Seconds from a deadline, or from a loss, to the end of the job."""

DEADLINE = {"NCCLKV_TIMEOUT": f"{TIMEOUT:g}"}


def ended_in_time(ended: Ended, seconds: float = 0.0) -> None:
    """Fail unless the job failed, within `SLACK` after `seconds`."""
    assert ended.code != 0, ended.err
    assert ended.seconds < stretched(seconds + SLACK), f"{ended.seconds:.1f} s\n{ended.err}"


def raised(jobs: Jobs, lost: int, pattern: str) -> None:
    """Fail unless each rank but the lost one raised what the pattern describes."""
    for rank, words in enumerate(jobs.told()):
        if rank != lost:
            assert re.match(f"{jobs.host_of(rank)}: {pattern}", words), f"rank {rank}: {words}"


def test_an_exception_is_reported_on_every_host(hosts: Jobs) -> None:
    lost = hosts.size - 1
    ended = hosts.program("steps.py", "raise", str(lost), STEPS)
    ended_in_time(ended)
    raised(hosts, lost, rf"RankLost: .*\brank {lost} left .* ValueError: told to fail")
    first = rf"ncclkv: rank {lost} of {hosts.size} on {hosts.host_of(lost)} \(pid \d+\) failed, "
    assert re.match(first, ended.words[0]), ended.err


def test_an_exit_is_reported_on_every_host(hosts: Jobs) -> None:
    lost = hosts.size - 1
    ended = hosts.program("steps.py", "exit", str(lost), STEPS)
    ended_in_time(ended)
    raised(hosts, lost, rf"RankLost: .*\brank {lost} left .* SystemExit: 3")


def test_a_mismatch_is_reported_on_every_host(hosts: Jobs) -> None:
    lost = hosts.size - 1
    ended = hosts.program("steps.py", "order", str(lost), STEPS)
    ended_in_time(ended)
    first, second = r"rank \d called push\('w', 'large'\)", r"called pull\('large'\)"
    raised(hosts, -1, rf"OrderMismatch: .*{first} at .* rank {lost} {second} at ")


def test_a_stopped_rank_is_named_at_the_deadline(hosts: Jobs) -> None:
    lost = hosts.size - 1
    ended = hosts.program("steps.py", "stop", str(lost), STEPS, **DEADLINE)
    ended_in_time(ended, TIMEOUT)
    raised(hosts, lost, rf"CommTimeout: .*\(timeout 3 s\) .*\brank {lost}\b")


def test_mpirun_ends_the_job_of_a_killed_rank(hosts: Jobs) -> None:
    ended_in_time(hosts.program("steps.py", "kill", str(hosts.size - 1), STEPS))


@pytest.mark.parametrize("way", ["kill", "kill-unseen"])
def test_ncclkv_run_names_a_killed_rank_and_the_others_live_to_raise(hosts: Jobs, way: str) -> None:
    """Check that no message is sent to an ended process: MPICH over UCX crashes in one."""
    lost = hosts.size - 1
    ended = hosts.program("steps.py", way, str(lost), STEPS, run=True)
    ended_in_time(ended)
    raised(hosts, lost, rf"(RankDied|RankLost): .*\brank {lost}\b.* (has ended|was killed)")
    assert "signal 11" not in ended.err
    assert "SIGSEGV" not in ended.err
    assert re.search(rf"ncclkv run: the job failed .*: rank {lost}\b", ended.err), ended.err


def test_a_rank_that_is_killed_after_its_close_crashes_no_rank_of_another_host(hosts: Jobs) -> None:
    lost = hosts.size - 1
    ended = hosts.program("steps.py", "kill-closed", str(lost), STEPS, run=True)
    ended_in_time(ended)
    assert re.search(rf"RankDied: rank {lost} on \S+ \(pid \d+\) has ended", ended.err), ended.err
    assert "SIGSEGV" not in ended.err
    assert re.search(rf"ncclkv run: the job failed .*: rank {lost}\b", ended.err), ended.err


def test_an_error_of_mpi_is_reported_as_the_loss_of_its_peer(hosts: Jobs) -> None:
    """Check MPICH over libfabric, which reports an error where it crashes over UCX."""
    lost = hosts.size - 1
    ended = hosts.program(
        "steps.py", "kill-unseen", str(lost), STEPS, run=True, MPIR_CVAR_CH4_NETMOD="ofi"
    )
    ended_in_time(ended)
    raised(hosts, lost, rf"(RankDied|RankLost): .*\brank {lost}\b")
    assert "failed, ending the job: Exception" not in ended.err


def beyond(jobs: Jobs) -> None:
    """Fail unless all ranks timed out, and each host names a rank or a host that is cut off."""
    last = jobs.network.hosts[-1].name
    names: dict[bool, list[str]] = {True: [], False: []}
    for rank, words in enumerate(jobs.told()):
        assert re.match(rf"{jobs.host_of(rank)}: (CommTimeout|RankLost): ", words), words
        names[jobs.host_of(rank) == last].append(words.partition(": ")[2])
    far = [rank for rank in range(jobs.size) if jobs.host_of(rank) == last]
    near = [rank for rank in range(jobs.size) if rank not in far]
    for is_far, others in ((False, far), (True, near)):
        pattern = rf"\branks? (\d+, )*({'|'.join(map(str, others))})\b"
        assert any(re.search(pattern, words) for words in names[is_far]), names


def test_a_cut_link_is_found_at_the_deadline_on_both_sides(hosts: Jobs) -> None:
    network = hosts.network
    ended = hosts.program(
        "steps.py", "none", "0", FOR_EVER, fault=lambda: network.cut(network.hosts[-1]), **DEADLINE
    )
    ended_in_time(ended, TIMEOUT)
    beyond(hosts)


def test_a_link_that_loses_one_way_is_found_at_the_deadline(hosts: Jobs) -> None:
    *others, last = hosts.network.hosts
    ended = hosts.program(
        "steps.py",
        "none",
        "0",
        FOR_EVER,
        fault=lambda: hosts.network.drop(last, *others),
        **DEADLINE,
    )
    ended_in_time(ended, TIMEOUT)
    beyond(hosts)


def exact(jobs: Jobs, ended: Ended, steps: str) -> None:
    """Fail unless the job ended well, with exact sums on all ranks."""
    assert ended.code == 0, ended.err
    for rank, words in enumerate(jobs.told()):
        assert words == f"{jobs.host_of(rank)}: summed exactly in {steps} steps"


def test_sums_are_exact_when_one_packet_in_ten_is_lost(hosts: Jobs) -> None:
    lossy = hosts.network.hosts[-1]
    ended = hosts.program(
        "steps.py", "none", "0", "25", fault=lambda: hosts.network.lose(lossy, 10)
    )
    exact(hosts, ended, "25")


def test_sums_are_exact_when_the_link_is_down_for_three_seconds(hosts: Jobs) -> None:
    network, last = hosts.network, hosts.network.hosts[-1]

    def blip() -> None:
        network.cut(last)
        time.sleep(3)
        network.mend(last)

    ended = hosts.program("steps.py", "none", "0", "500", fault=blip)
    exact(hosts, ended, "500")
    assert ended.seconds > 3


def test_a_caught_timeout_ends_the_program_though_the_link_is_cut(hosts: Jobs) -> None:
    """MPI_Finalize waits for all ranks and has no deadline, so no rank may call it."""
    network = hosts.network
    ended = hosts.program(
        "steps.py", "catch", "0", FOR_EVER, fault=lambda: network.cut(network.hosts[-1]), **DEADLINE
    )
    ended_in_time(ended, TIMEOUT)
    beyond(hosts)
