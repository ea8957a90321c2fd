"""Variables of the environment: wrong and misspelt ones, and launchers that ncclkv cannot join."""

from __future__ import annotations

from collections.abc import Iterator

from ncclkv import env
from ncclkv.comm.host.alone import check_size
from ncclkv.doctor.rows import WARNS, Row, refused
from ncclkv.errors import LaunchError

_OF_OTHERS = (
    *("UCX_", "FI_", "MPIR_CVAR_", "MPICH_", "HYDRA_", "I_MPI_", "OMPI_MCA_", "PRTE_MCA_"),
    *("NCCL_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
)
"""Beginnings of names that change how MPI, NCCL, CUDA or NumPy work."""

_OF_OPEN_MPI = ("OMPI_MCA_", "PRTE_MCA_")
"""Beginnings of names that Open MPI's mpirun also sets by itself, for its ranks."""

_MOST_SHOWN = 6
_LONGEST = 40
"""Variables, and characters of each, that a row shows."""

_SECRET = ("NCCLKV_RUN_SECRET", "NCCLKV_RUN_EVENTS", "NCCLKV_RESTART")
"""Variables that ``ncclkv run`` sets by itself."""


def rows() -> Iterator[Row]:
    """Yield a row for the launcher and for all variables, and one for each that is wrong."""
    yield _launcher()
    own = {name: text for name, text in env.own_variables().items() if name not in _SECRET}
    yield Row("NCCLKV_*", _listed(own))
    for name, text in env.wrong().items():
        yield refused(name, text, found=own.get(name) or "wrong")
    for each in env.unknown():
        name, _, meant = each.partition(" ")
        nearest = meant.removeprefix("(did you mean ").removesuffix("?)")
        mend = f"set {nearest}, and unset {name}" if nearest else f"unset {name}"
        yield Row(
            name,
            own[name] or "empty",
            "nothing",
            "ncclkv has no variable of this name",
            mend,
            WARNS,
        )
    started = env.launched()
    by_open_mpi = started is not None and started.launcher.name.startswith("Open MPI")
    left_out = _OF_OPEN_MPI if by_open_mpi else ()
    others = {
        name: text
        for name, text in sorted(env.for_ranks({}, {}).items())
        if name.startswith(_OF_OTHERS) and not name.startswith(left_out)
    }
    yield Row("other settings", _listed(others), "for MPI, NCCL, CUDA, NumPy")


def _listed(variables: dict[str, str]) -> str:
    """List variables with their values."""
    shown = [
        f"{name}={text[:_LONGEST]}" + "..." * (len(text) > _LONGEST)
        for name, text in variables.items()
    ]
    more = len(shown) - _MOST_SHOWN
    return ", ".join([*shown[:_MOST_SHOWN], *([f"{more} more"] if more > 0 else [])]) or "none set"


def _launcher() -> Row:
    """Return the row of the launcher that started this process."""
    other, started = env.launched_otherwise(), env.launched()
    if started is not None:
        name = started.launcher.name
        by = f"{name}, by ncclkv run" if env.under_runner() else name
        return Row("launcher", by, f"{started.size} rank{'s' * (started.size > 1)}")
    if other is not None:
        try:
            check_size(1, "")
        except LaunchError as error:
            return refused("launcher", error, found=other.launcher.name)
        return Row("launcher", other.launcher.name, "a store for each process: NCCLKV_ALONE=1")
    if env.launched_without_size():
        return Row("launcher", "a launcher of MPI", "its number of ranks, by MPI alone")
    return Row("launcher", "none", "this process alone")
