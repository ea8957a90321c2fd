"""Variables of the environment: wrong and misspelt ones, and launchers that ncclkv cannot join."""

from __future__ import annotations

from collections.abc import Iterator

from ncclkv import env, launchers
from ncclkv.doctor.rows import BLOCKS, OK, WARNS, Row, refused

_OF_OTHERS = (
    *("UCX_", "FI_", "MPIR_CVAR_", "MPICH_", "HYDRA_", "I_MPI_", "OMPI_MCA_", "PRTE_MCA_"),
    *("NCCL_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
)
"""Beginnings of names that change how MPI, NCCL, CUDA or NumPy work."""

_MOST_SHOWN = 6

_SECRET = ("NCCLKV_RUN_SECRET", "NCCLKV_RUN_EVENTS", "NCCLKV_RESTART")
"""Variables that ``ncclkv run`` sets by itself."""


def rows() -> Iterator[Row]:
    """Yield a row for the launcher and for all variables, and one for each that is wrong."""
    yield _launcher()
    own = {name: text for name, text in env.own_variables().items() if name not in _SECRET}
    yield Row("NCCLKV_*", _listed(own))
    for name, text in env.wrong().items():
        yield refused(name, text, found=own.get(name, "wrong"))
    for each in env.unknown():
        name, _, meant = each.partition(" ")
        nearest = meant.removeprefix("(did you mean ").removesuffix("?)")
        mend = f"set {nearest}, and unset {name}" if nearest else f"unset {name}"
        yield Row(name, own[name], "nothing", "ncclkv has no variable of this name", mend, WARNS)
    others = {
        name: text
        for name, text in sorted(env.for_ranks({}, {}).items())
        if name.startswith(_OF_OTHERS)
    }
    yield Row("other settings", _listed(others), "for MPI, NCCL, CUDA, NumPy")


def _listed(variables: dict[str, str]) -> str:
    """List variables with their values."""
    shown = [f"{name}={text}" for name, text in variables.items()]
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
        size = launchers.line_to_type(other.size, other.hosts).split(" -- ")[0]
        said = f"{other.launcher.size}={other.size}"
        alone = env.alone()
        return Row(
            *("launcher", other.launcher.name, "one process each" if alone else ""),
            f"{said} is set, and ncclkv cannot join this launcher" + "; NCCLKV_ALONE=1" * alone,
            "" if alone else f"{size} -- python SCRIPT; or set NCCLKV_ALONE=1 for one store each",
            OK if alone else BLOCKS,
        )
    if env.launched_without_size():
        return Row("launcher", "a launcher of MPI", "its number of ranks, by MPI alone")
    return Row("launcher", "none", "this process alone")
