"""Layer 0: whether ranks can start NCCL, and with which settings, decided from made-up facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ncclkv.comm.nccl.discovery import (
    OLDEST_NCCL,
    DeviceInfo,
    device_of,
    launch_problem,
    max_ctas,
    settings,
    shared_gpus,
)

WELL = DeviceInfo(
    rank=0,
    host="node0",
    devices=2,
    device=0,
    gpu="0000:1B:00.0 a1",
    nccl=22809,
    cupy="14.2.0",
    driver=12080,
    share=False,
)


def job(hosts: int = 2, ranks: int = 2, devices: int = 2, **changes: object) -> list[DeviceInfo]:
    """Return facts of `ranks` ranks on each of `hosts` hosts with `devices` GPUs each."""
    facts = []
    for rank in range(hosts * ranks):
        host, device = rank // ranks, device_of(rank % ranks, devices)
        place = {"rank": rank, "host": f"node{host}", "device": device, "devices": devices}
        place["gpu"] = f"0000:{device}B:00.0 a{device}"
        place |= {"process": f"{100 + rank}", "job": hosts * ranks}
        facts.append(replace(WELL, **{**place, **changes}))
    return facts


def but(facts: Sequence[DeviceInfo], rank: int, **changes: object) -> list[DeviceInfo]:
    """Return the same facts, with changes of one rank."""
    return [replace(each, **changes) if each.rank == rank else each for each in facts]


def says(facts: Sequence[DeviceInfo], *words: str) -> None:
    """Check that these ranks may not start, with each of `words` in the error."""
    __tracebackhide__ = True
    text = launch_problem(facts)
    assert text is not None
    missing = [word for word in words if word not in text]
    assert not missing, f"lacks {missing} in its text: {text}"


@pytest.mark.parametrize(
    ("hosts", "ranks", "devices"), [(1, 1, 1), (1, 8, 8), (4, 2, 2), (2, 1, 4)]
)
def test_a_gpu_for_each_is_well(hosts, ranks, devices):
    assert launch_problem(job(hosts, ranks, devices)) is None


def test_devices_go_round():
    assert [device_of(rank, 3) for rank in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert [device_of(rank, 1) for rank in range(3)] == [0, 0, 0]


def test_the_launcher_may_show_each_rank_one_gpu():
    facts = [
        replace(each, device=0, devices=1, gpu=f"0000:{each.rank}B:00.0 x") for each in job(1, 4, 4)
    ]
    assert launch_problem(facts) is None


def test_the_same_bus_on_two_hosts_is_two_gpus():
    facts = job(2, 1, 1)
    assert facts[0].gpu == facts[1].gpu
    assert launch_problem(facts) is None
    assert shared_gpus(facts) == {}


def test_two_ranks_on_one_gpu_are_named_with_a_command():
    says(
        job(2, 2, 1),
        "ranks 0, 1 (node0) would share one GPU: 1 GPU is visible there",
        "mpirun -n 2",
        "NCCLKV_SHARE_GPU=1 on every rank",
    )
    says(job(1, 5, 3), "ranks 0, 3 (node0) would share", "3 GPUs are visible", "mpirun -n 3")


def test_sharing_on_purpose_is_well():
    assert launch_problem(job(1, 4, 1, share=True)) is None


def test_a_rank_without_a_gpu_is_named_with_its_reason():
    facts = but(job(), 2, obstacle="CuPy finds no GPU (none)", devices=0, gpu="", nccl=0, cupy="")
    says(facts, "a GPU on every rank", "rank 2 (node1): CuPy finds no GPU (none)")


def test_ranks_with_the_same_obstacle_are_named_together():
    facts = job(obstacle="no CuPy", nccl=0, cupy="", gpu="")
    facts = but(facts, 3, obstacle="no libnccl")
    says(facts, "ranks 0, 1, 2 (node0, node1): no CuPy; rank 3 (node1): no libnccl")


def test_sharing_is_set_on_all_ranks_or_none():
    says(
        but(job(1, 2, 1), 0, share=True),
        "NCCLKV_SHARE_GPU=1 is set on rank 0 (node0) and not on rank 1 (node0)",
        "mpirun -genv NCCLKV_SHARE_GPU 1",
        "mpirun -x NCCLKV_SHARE_GPU=1",
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nccl": 23203}, ("of NCCL: 2.28.9 on ranks 0, 1, 2", "2.32.3 on rank 3 (node1)")),
        ({"cupy": "14.1.0"}, ("of CuPy: 14.2.0 on ranks 0, 1, 2", "14.1.0 on rank 3 (node1)")),
        ({"driver": 13000}, ("of the CUDA driver: 12.8 on ranks", "13.0 on rank 3 (node1)")),
    ],
)
def test_versions_are_the_same_everywhere(change, words):
    says(but(job(), 3, **change), "ranks have different versions", *words, "for all of them")


def test_old_libraries_are_refused():
    says(job(nccl=OLDEST_NCCL - 1), "NCCL 2.18.0 on rank 0 (node0) is older than 2.18.1", "pip")
    assert launch_problem(job(nccl=OLDEST_NCCL)) is None
    says(job(cupy="13.6.0"), "CuPy 13.6.0 on rank 0 (node0) is older than 14", "pip")
    assert launch_problem(job(cupy="15.0.0rc1")) is None


HANGS = {"NCCL_RUNTIME_CONNECT": "0", "NCCL_GRAPH_REGISTER": "0"}
ORDER = {"NCCL_LAUNCH_ORDER_IMPLICIT": "1"}
ALONE = {"NCCL_NO_CACHE": "NCCL_RUNTIME_CONNECT,NCCL_GRAPH_REGISTER"}


@pytest.mark.parametrize(
    ("nccl", "chosen"),
    [
        (22501, HANGS),
        (22602, HANGS | ORDER),
        (22809, HANGS | ORDER),
        (22907, HANGS | ORDER | ALONE),
        (23203, HANGS | ORDER | ALONE),
    ],
)
def test_a_gpu_for_each_needs_few_settings(nccl, chosen):
    assert settings(job(nccl=nccl), 1) == chosen


@pytest.mark.parametrize("nccl", [23003, 23203])
def test_a_new_nccl_gets_the_setting_for_shared_gpus(nccl):
    facts = job(1, 3, 1, share=True, nccl=nccl)
    chosen = [settings(facts, rank) for rank in range(3)]
    assert chosen[0] == chosen[1] == chosen[2]
    assert chosen[0]["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    assert chosen[0]["NCCL_NVLS_ENABLE"] == "0"
    assert 1 <= (max_ctas(facts) or 0) <= 4
    assert "NCCL_HOSTID" not in chosen[0]


@pytest.mark.parametrize("nccl", [22809, 23002])
def test_with_an_old_nccl_each_rank_counts_as_a_host(nccl):
    facts = job(1, 3, 1, share=True, nccl=nccl)
    chosen = [settings(facts, rank) for rank in range(3)]
    assert len({each["NCCL_HOSTID"] for each in chosen}) == 3
    for each in chosen:
        assert each["NCCL_NET"] == "Socket"
        assert each["NCCL_SOCKET_IFNAME"] == "lo"
        assert "NCCL_MULTI_RANK_GPU_ENABLE" not in each
    several = job(2, 2, 1, share=True, nccl=nccl)
    assert all("NCCL_SOCKET_IFNAME" not in settings(several, rank) for rank in range(4))


@pytest.mark.parametrize("nccl", [22809, 23203])
def test_settings_of_sharing_do_not_depend_on_the_communicator(nccl):
    """Check each variable that NCCL keeps for the communicators that follow in its process."""
    everyone = job(2, 2, 1, share=True, nccl=nccl)
    for rank, own in enumerate(everyone):
        alone = settings([replace(own, rank=0)], 0)
        pair = [replace(own, rank=0), replace(everyone[rank - 1], rank=1)]
        assert settings(everyone, rank) == alone == settings(pair, 0)


def test_the_loopback_is_for_jobs_of_one_host_alone():
    """Check a communicator of a part of the job: ranks of other hosts may be in the next one."""
    facts = job(1, 4, 1, share=True)
    assert settings(facts, 0)["NCCL_SOCKET_IFNAME"] == "lo"
    for part in (facts[:1], facts[:2], [replace(each, job=None) for each in facts]):
        assert "NCCL_SOCKET_IFNAME" not in settings(part, 0)


def test_settings_of_sharing_go_to_all_ranks_when_any_share():
    facts = but(job(1, 3, 3, share=True, nccl=23203), 2, gpu="0000:1B:00.0 a1", device=1)
    assert shared_gpus(facts) == {("node0", "0000:1B:00.0 a1"): [1, 2]}
    assert all("NCCL_MULTI_RANK_GPU_ENABLE" in settings(facts, rank) for rank in range(3))


def slices(nccl: int, **changes: object) -> list[DeviceInfo]:
    """Return the facts of two ranks on two slices of one GPU."""
    facts = but(job(1, 2, 2, nccl=nccl, **changes), 1, gpu="0000:1B:00.0 b2")
    return [replace(each, bus="0000:1B:00.0") for each in facts]


def test_slices_of_one_gpu_are_refused_in_our_words_where_nccl_refuses_them():
    says(
        slices(22809),
        "ranks 0, 1 (node0) are on slices of one GPU (MIG)",
        "NCCL 2.28.9 takes for the same GPU",
        "NCCLKV_SHARE_GPU=1 on every rank",
    )
    assert launch_problem(slices(23003)) is None
    shared = slices(22809, share=True)
    assert launch_problem(shared) is None
    assert settings(shared, 0)["NCCL_HOSTID"] != settings(shared, 1)["NCCL_HOSTID"]
    assert (max_ctas(shared), max_ctas(slices(23003))) == (2, None)
