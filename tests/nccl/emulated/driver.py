"""Files of a CUDA driver; layer 3b refuses to start beside one."""

from __future__ import annotations

import os
from pathlib import Path

SIGNS = (
    "proc/driver/nvidia",
    "dev/nvidiactl",
    "dev/nvidia0",
    "dev/nvidia-uvm",
    "dev/dxg",
)
FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib",
    "usr/local/cuda/compat",
)
"""Folders of a driver's library."""


def present(ours: Path, root: Path = Path("/")) -> str:
    """Return a file of a driver, or "" if there is none.

    Parameters
    ----------
    ours : pathlib.Path
        The folder of the emulated libraries, which has its own libcuda.so.1.
    root : pathlib.Path
        The root of the file system.
    """
    named = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    others = [Path(name) for name in named if name and Path(name) != ours]
    folders = [*(root / folder for folder in FOLDERS), *others]
    files = [*(root / sign for sign in SIGNS), *(folder / "libcuda.so.1" for folder in folders)]
    return next((str(file) for file in files if file.exists()), "")
