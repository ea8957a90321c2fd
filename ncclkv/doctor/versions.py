"""Versions: Python, packages and the kernels in C."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np

import ncclkv
from ncclkv.doctor.rows import BLOCKS, WARNS, Row
from ncclkv.kernels.host import compiled

OLDEST = {"NumPy": "1.23", "mpi4py": "4"}
"""Oldest versions that the package runs with, as in ``setup.cfg``."""

OPTIONAL = {
    "torch": "ncclkv.torch",
    "safetensors": "checkpoints",
    "ml_dtypes": "bfloat16",
}
"""Packages that some jobs need, with their use."""


def rows() -> Iterator[Row]:
    """Yield a row for Python, each package, and the kernels in C."""
    yield Row("Python", platform.python_version(), sys.executable)
    yield Row("ncclkv", ncclkv.__version__, str(Path(ncclkv.__file__).parent))
    yield _package("NumPy", np.__version__, "numpy", str(Path(np.__file__).parent))
    yield _package("mpi4py", _version("mpi4py"), "mpi4py")
    for name, use in OPTIONAL.items():
        if found := _version(name):
            yield Row(name, found, use)
    yield _kernels()


def _version(package: str) -> str:
    """Return the version of an installed package, without its import; empty without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _package(name: str, found: str, package: str, used: str = "") -> Row:
    """Return the row of a package that jobs need."""
    install = f"{sys.executable} -m pip install '{package}>={OLDEST[name]}'"
    if not found:
        return Row(name, "none", "", "jobs of several ranks need it", install, WARNS)
    if release(found) < release(OLDEST[name]):
        return Row(name, found, used, f"it is older than {OLDEST[name]}", install, BLOCKS)
    return Row(name, found, used)


def release(text: str) -> list[int]:
    """Return the integers of a release, such as 1.23.5; what follows them is left out.

    Examples
    --------
    >>> release("1.23.5"), release("2.0rc1") < release("2.1")
    ([1, 23, 5], True)
    """
    found = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        found.append(int(digits or 0))
    return found


def _kernels() -> Row:
    """Return the row of the kernels in C."""
    slower = "sums, updates and copies in host memory take 1.4 to 2 times as long"
    if compiled.active:
        return Row("C kernels", "built", "C and NumPy")
    if compiled.BUILT:
        why = f"NCCLKV_COMPILED=0; {slower}"
        return Row("C kernels", "built", "NumPy", why, "unset NCCLKV_COMPILED", WARNS)
    why = f"no C compiler was found when ncclkv was installed; {slower}"
    return Row("C kernels", "not built", "NumPy", why, _build(), WARNS)


def _build() -> str:
    """Return the command that builds the kernels, with a compiler."""
    root = Path(ncclkv.__file__).parents[1]
    again = "--force-reinstall --no-deps --no-cache-dir"
    source = f"-e {root}" if (root / "setup.py").is_file() else f"{again} {_origin()}"
    return (
        f"install gcc and Python's headers (apt install gcc python3-dev), then: {sys.executable} "
        f"-m pip install {source}"
    )


def _origin() -> str:
    """Return what pip has installed: the folder of a clone that is still there, or the name."""
    try:
        noted = distribution("ncclkv").read_text("direct_url.json")
    except PackageNotFoundError:
        noted = None
    url = urlsplit(json.loads(noted)["url"] if noted else "")
    folder = Path(unquote(url.path))
    clone = url.scheme == "file" and (folder / "setup.py").is_file()
    return shlex.quote(str(folder)) if clone else "ncclkv"
