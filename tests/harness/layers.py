"""Closing line of a run: the layers of the NCCL tests that it included.

A test's layer is in its name (``test_layer_3_...``), or else in its module's first line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.harness.source import ROOT
from tests.nccl import gpu

LAYERS = {
    "2": "recording stand-in, not NCCL",
    "3": "libnccl and NVRTC, no GPU",
    "3b": "CuPy on an emulated device, no GPU",
    "4": "one rank on a GPU",
    "5": "several ranks on a GPU",
}
ON_A_GPU = ("4", "5")


def summary(stats: Mapping[str, Sequence[Any]]) -> str:
    """Return one line on the layers; empty if no test of any layer ran.

    Parameters
    ----------
    stats : mapping of str to list of pytest.TestReport
        By outcome, as pytest's terminal reporter has them.
    """
    passed, found = _count(stats.get("passed", ())), _count(r for rs in stats.values() for r in rs)
    if not found:
        return ""
    said = [
        f"{layer} ({LAYERS[layer]}): {passed[layer] or 'none'} passed" for layer in sorted(LAYERS)
    ]
    return "layers of NCCL: " + "; ".join(said)


def _count(reports: Any) -> Counter[str]:
    """Return the count of tests of each layer."""
    layers = (layer_of(report.nodeid) for report in reports if hasattr(report, "nodeid"))
    return Counter(layer for layer in layers if layer is not None)


def layer_of(nodeid: str) -> str | None:
    """Return the layer of a test by its node id; on an emulated device no test is of a GPU."""
    path, _, name = nodeid.partition("::")
    own = re.match(r"test_layer_(\d)", name)
    layer = own[1] if own else _of_module(path)
    return "3b" if layer in ON_A_GPU and gpu.emulated() else layer


@cache
def _of_module(path: str) -> str | None:
    """Return the layer in the first line of a module."""
    file = ROOT / Path(path)
    if not file.is_file():
        return None
    first = file.read_text().partition("\n")[0]
    if first.startswith('"""Layers 4 and 5'):
        from ncclkv import env  # the jobs of the harness's own tests run without the package

        return "4" if (env.launched_size() or 1) == 1 else "5"
    layer = re.match(r'"""Layer (\d\w?)', first)
    return layer[1] if layer else None
