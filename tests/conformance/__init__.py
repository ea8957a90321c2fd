"""Bodies of store tests that hold for every kind of store, placement and count of ranks.

A case is a function of one argument, `create`, which opens stores for the calling rank.  The
modules that run the cases, over threads and under ``mpirun``, choose the store.
"""

from importlib import import_module
from pathlib import Path

import pytest

MODULES = (
    "arrays",
    "buckets",
    "callbacks",
    "checkpoints",
    "checkpoints_compressed",
    "checkpoints_divided",
    "checkpoints_refused",
    "reductions",
    "compression",
    "compression_of_halves",
    "compression_of_largest",
    "compression_of_largest_nodes",
    "compression_of_matrices",
    "compression_of_nodes",
    "contract",
    "regressions",
    "divergence",
    "divergence_repair",
    "dtypes",
    "foreign_arrays",
    "groups",
    "introspection",
    "keys",
    "pending_pushes",
    "lifetime",
    "misuse_arrays",
    "misuse_calls",
    "misuse_keys",
    "misuse_lists",
    "mxnet_nightly",
    "mxnet_unit",
    "optimizers",
    "overlaps",
    "plans",
    "precision",
    "nonfinite",
    "norms",
    "numbers",
    "objects",
    "one_off",
    "one_off_misuse",
    "missing_pushes",
    "pulls",
    "reproducible",
    "schedules",
    "sharded",
    "sparse_lists",
    "several_stores",
    "trajectories",
    "uneven",
    "updaters",
    "updaters_raising",
    "local_failures",
    "views",
    "late_ranks",
)

# Before the imports, so that a failing assert in a case shows its values.
for _file in Path(__file__).parent.glob("*.py"):
    if _file.stem != "__init__":
        pytest.register_assert_rewrite(f"tests.conformance.{_file.stem}")

from tests.conformance.registry import CASES, Case  # noqa: E402

for _module in MODULES:
    import_module(f"tests.conformance.{_module}")

__all__ = ["CASES", "Case"]
