"""Discovery: the GPU and the libraries of each rank, and whether the ranks can start NCCL.

No function here reads a device or the environment: tests call them with any values.  Every rank
decides from the same list, so all ranks fail together and with the same text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ncclkv.comm.nccl.binding import version_text

Kind = TypeVar("Kind", bound=Hashable)

OLDEST_NCCL = 21801
"""Oldest version of NCCL that the tests run."""

OLDEST_CUPY = 14
"""Oldest version of CuPy that the tests run."""

_SEVERAL_RANKS_ON_A_GPU = 23003
_LAUNCH_ORDER = 22602
_NO_CACHE = 22907


@dataclass(frozen=True)
class DeviceInfo:
    """GPU and libraries of one rank."""

    rank: int
    host: str
    share: bool
    """``NCCLKV_SHARE_GPU=1`` is set."""
    devices: int = 0
    """Count of devices that the rank sees."""
    device: int = 0
    """Index of the device that the rank uses."""
    gpu: str = ""
    """Identity of that device on its host."""
    nccl: int = 0
    cupy: str = ""
    driver: int = 0
    """CUDA version of the driver, such as 12080 for 12.8."""
    obstacle: str = ""
    """Reason that there is no GPU or no NCCL, with advice; the other fields are then void."""
    bus: str = ""
    """PCI bus id of the GPU: slices of one GPU (MIG) share it, but differ in `gpu`."""
    process: str = ""
    """Name of the rank's process, which no other process of the job on this host has."""
    job: int | None = None
    """Count of ranks that the launcher started; None if unknown."""


def device_of(local_rank: int, devices: int) -> int:
    """Return the device of a rank: the ranks of a node take the devices in turn.

    A launcher may make one device visible to each rank; on every rank this device has index 0.

    Examples
    --------
    >>> [device_of(local_rank, 4) for local_rank in range(5)]
    [0, 1, 2, 3, 0]
    """
    return local_rank % devices


def launch_problem(infos: Sequence[DeviceInfo]) -> str | None:
    """Return the reason that NCCL cannot run on these ranks, with advice; None if it can."""
    findings = (
        _obstacles,
        _differing_shares,
        _old_versions,
        _differing_versions,
        _unwanted_sharing,
    )
    return next(filter(None, (find(infos) for find in findings)), None)


def shared_gpus(infos: Sequence[DeviceInfo]) -> dict[tuple[str, str], list[int]]:
    """Return the ranks of each GPU that several ranks use, by host and identity."""
    groups = _group_by(infos, lambda each: (each.host, _nccl_identity(each)))
    return {gpu: ranks for gpu, ranks in groups.items() if len(ranks) > 1}


def _nccl_identity(each: DeviceInfo) -> str:
    """Return the identity of a rank's GPU for NCCL: before 2.30.3 the PCI bus id."""
    return each.bus if each.bus and each.nccl < _SEVERAL_RANKS_ON_A_GPU else each.gpu


def max_ctas(infos: Sequence[DeviceInfo]) -> int | None:
    """Return the maximum count of blocks of NCCL's kernels; None if NCCL chooses.

    The kernels of all ranks that share a GPU must fit on it together.
    """
    return 2 if shared_gpus(infos) else None


def settings(infos: Sequence[DeviceInfo], rank: int) -> dict[str, str]:
    """Return the settings of NCCL for `rank`; the user's own settings override them.

    NCCL reads each parameter at its first use: at creation, at the first launch, or at the first
    captured collective.  NCCL keeps most parameters for all later communicators of the process.  So
    the settings are the same for every communicator of a process, also of one rank.
    """
    chosen = {
        # Connect at creation, which has a deadline: by default NCCL connects in the first
        # collective, and blocks the caller until all ranks have arrived.
        "NCCL_RUNTIME_CONNECT": "0",
        # A registration of captured buffers waits for the node's ranks in a loop without deadline
        # or abort.  NCCL would then refuse the memory of CuPy's pool anyway.
        "NCCL_GRAPH_REGISTER": "0",
    }
    if infos[rank].nccl >= _LAUNCH_ORDER:
        # Each store has a communicator; NCCL then runs their kernels in the order of the launches.
        chosen["NCCL_LAUNCH_ORDER_IMPLICIT"] = "1"
    if infos[rank].nccl >= _NO_CACHE:
        # Other users of the same libnccl, such as torch, then read these two parameters anew.
        chosen["NCCL_NO_CACHE"] = "NCCL_RUNTIME_CONNECT,NCCL_GRAPH_REGISTER"
    return chosen | (_settings_to_share(infos, rank) if infos[rank].share else {})


def _settings_to_share(infos: Sequence[DeviceInfo], rank: int) -> dict[str, str]:
    """Return the settings of a rank that may share its GPU, with ranks of any communicator."""
    # Multicast needs a GPU for each rank.
    chosen = {"NCCL_NVLS_ENABLE": "0"}
    own = infos[rank]
    if own.nccl >= _SEVERAL_RANKS_ON_A_GPU:
        return chosen | {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    # An older NCCL allows one rank for each GPU and host, so each process gets its own host id.
    # Not an id of this communicator: in the next one another rank may have the same.
    chosen |= {
        "NCCL_HOSTID": f"{own.host}-{own.process}",
        "NCCL_NET": "Socket",
        "NCCL_IB_DISABLE": "1",
        "NCCL_MNNVL_ENABLE": "0",
    }
    # Ranks of other hosts may be in a later communicator, unless all of the job are in this one.
    if len(infos) == own.job and all(each.host == own.host for each in infos):
        chosen["NCCL_SOCKET_IFNAME"] = "lo"
    return chosen


def _obstacles(infos: Sequence[DeviceInfo]) -> str | None:
    """Report ranks without a GPU, CuPy or NCCL."""
    groups = _group_by(infos, lambda each: each.obstacle)
    groups.pop("", None)
    if not groups:
        return None
    texts = "; ".join(f"{_where(infos, ranks)}: {text}" for text, ranks in groups.items())
    return f"NCCL needs a GPU on every rank. {texts}"


def _differing_shares(infos: Sequence[DeviceInfo]) -> str | None:
    """Report ``NCCLKV_SHARE_GPU`` that differs between ranks."""
    groups = _group_by(infos, lambda each: each.share)
    if len(groups) == 1:
        return None
    return (
        f"NCCLKV_SHARE_GPU=1 is set on {_where(infos, groups[True])} and not on "
        f"{_where(infos, groups[False])}; set it on all ranks: mpirun -genv NCCLKV_SHARE_GPU 1 "
        f"(MPICH) or mpirun -x NCCLKV_SHARE_GPU=1 (Open MPI)"
    )


def _old_versions(infos: Sequence[DeviceInfo]) -> str | None:
    """Report libraries that are too old."""
    for each in infos:
        where = _where(infos, [each.rank])
        if each.nccl < OLDEST_NCCL:
            return (
                f"NCCL {version_text(each.nccl)} on {where} is older than "
                f"{version_text(OLDEST_NCCL)}; pip install -U nvidia-nccl-cu12 (or -cu13)"
            )
        if int(each.cupy.split(".")[0]) < OLDEST_CUPY:
            return (
                f"CuPy {each.cupy} on {where} is older than {OLDEST_CUPY}; "
                f"pip install -U cupy-cuda12x (or cupy-cuda13x)"
            )
    return None


def _differing_versions(infos: Sequence[DeviceInfo]) -> str | None:
    """Report libraries or drivers that differ between ranks."""
    kinds: list[tuple[str, Callable[[DeviceInfo], str], str]] = [
        ("NCCL", lambda each: version_text(each.nccl), "pip install the same nvidia-nccl-cu12"),
        ("CuPy", lambda each: each.cupy, "pip install the same cupy-cuda12x"),
        ("the CUDA driver", lambda each: _driver_text(each.driver), "install the same driver"),
    ]
    for name, version, advice in kinds:
        groups = _group_by(infos, version)
        if len(groups) > 1:
            found = ", ".join(f"{text} on {_where(infos, ranks)}" for text, ranks in groups.items())
            return f"ranks have different versions of {name}: {found}; {advice} for all of them"
    return None


def _unwanted_sharing(infos: Sequence[DeviceInfo]) -> str | None:
    """Report ranks that share a GPU without ``NCCLKV_SHARE_GPU=1``."""
    groups = shared_gpus(infos)
    if not groups or infos[0].share:
        return None
    ranks = next(iter(groups.values()))
    if len({infos[rank].gpu for rank in ranks}) > 1:
        return (
            f"{_where(infos, ranks)} are on slices of one GPU (MIG), which NCCL "
            f"{version_text(infos[ranks[0]].nccl)} takes for the same GPU and refuses. Give each "
            f"rank a whole GPU; or, for slow trials, set NCCLKV_SHARE_GPU=1 on every rank"
        )
    devices = infos[ranks[0]].devices
    visible = "1 GPU is" if devices == 1 else f"{devices} GPUs are"
    gpus = len({(each.host, each.gpu) for each in infos})
    return (
        f"{_where(infos, ranks)} would share one GPU: {visible} visible there. Start no more ranks "
        f"on a node than it has GPUs, here mpirun -n {gpus}; or, for slow trials, set "
        f"NCCLKV_SHARE_GPU=1 on every rank"
    )


def _group_by(
    infos: Sequence[DeviceInfo], key: Callable[[DeviceInfo], Kind]
) -> dict[Kind, list[int]]:
    """Return ranks grouped by `key`, in order of the first rank of each group."""
    groups: dict[Kind, list[int]] = defaultdict(list)
    for each in infos:
        groups[key(each)].append(each.rank)
    return dict(groups)


def _where(infos: Sequence[DeviceInfo], ranks: Sequence[int]) -> str:
    """Return text such as ``ranks 1, 3 (node4)``."""
    hosts = list(dict.fromkeys(infos[rank].host for rank in ranks))
    names = ", ".join(str(rank) for rank in ranks)
    return f"rank{'' if len(ranks) == 1 else 's'} {names} ({', '.join(hosts)})"


def _driver_text(code: int) -> str:
    """Return a driver's code as text: 12080 as 12.8."""
    return f"{code // 1000}.{code % 1000 // 10}"
