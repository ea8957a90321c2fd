"""Record the weights that MXNet's optimizers compute, for `tests.optimizers.cases`.

Run the script in an environment with mxnet 1.9.1, numpy 1.23.5 and Python 3.11::

    PYTHONPATH=. python tests/optimizers/record_mxnet.py tests/unit/optimizer/mxnet.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mxnet
import numpy as np

from tests.optimizers.settings import KEY, SETTINGS, STEPS, Settings, factors, gradient, weights

RECORDED = (1, 2, STEPS)
"""Steps whose weights are kept."""
ABSENT = ("adamw", "lion")
"""Optimizers that MXNet 1.9.1 lacks."""


def run(name: str, index: int, settings: Settings) -> dict[str, list[float]]:
    """Return the weights of the recorded steps, as MXNet computes them in float32."""
    optimizer: Any = mxnet.optimizer.create(name, **settings)
    optimizer.set_lr_mult({KEY: factors(index)["lr_mult"]})
    optimizer.set_wd_mult({KEY: factors(index)["wd_mult"]})
    updater = mxnet.optimizer.get_updater(optimizer)
    stored = mxnet.nd.array(weights(), dtype=np.float32)
    found = {}
    for step in range(1, STEPS + 1):
        updater(KEY, mxnet.nd.array(gradient(step), dtype=np.float32), stored)
        if step in RECORDED:
            # Nine digits name a float32.
            found[str(step)] = [float(f"{x:.9g}") for x in stored.asnumpy().tolist()]
    return found


def main() -> None:
    values = {
        name: [run(name, index, settings) for index, settings in enumerate(several)]
        for name, several in SETTINGS.items()
        if name not in ABSENT
    }
    versions = f"mxnet {mxnet.__version__}, numpy {np.__version__}, Python {sys.version.split()[0]}"
    text = f"float32 weights after steps {RECORDED}; tests/optimizers/record_mxnet.py; {versions}"
    lines = [f' "{name}": {json.dumps(each)}' for name, each in values.items()]
    body = ",\n".join([f' "about": {json.dumps(text)}', *lines])
    Path(sys.argv[1]).write_text(f"{{\n{body}\n}}\n")


if __name__ == "__main__":
    main()
