"""A rank fails behind an exception hook that keeps the text of the hooks before it in memory.

``python held_text.py torch FILE`` uses the hook of ``torch.distributed``, whose ranks meet by a
file; ``python held_text.py alone`` one like it.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from types import TracebackType

import numpy as np

import ncclkv


def keep_text() -> None:
    """Put a hook like that of torch in front."""
    former = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        stderr, sys.stderr = sys.stderr, io.StringIO()
        try:
            former(kind, error, trace)
        finally:
            kept, sys.stderr = sys.stderr.getvalue(), stderr
        sys.stderr.write(kept)

    sys.excepthook = hook


def main() -> None:
    kv = ncclkv.create("dist_sync")
    if sys.argv[1] == "torch":
        import torch.distributed

        torch.distributed.init_process_group(
            "gloo", f"file://{sys.argv[2]}", rank=kv.rank, world_size=kv.num_workers
        )
    else:
        keep_text()
    kv.init("w", np.zeros(3))
    if kv.rank == 1:
        Path(os.environ["MARK"]).touch()  # the failure's time
        raise ValueError("told to fail")
    kv.push("w", np.ones(3))
    kv.pull("w")


main()
