"""GPUs, CuPy and NCCL: the files that a process loads, looked at in children."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ncclkv.doctor.probe import Ended, ask
from ncclkv.doctor.rows import BLOCKS, WARNS, Row, refused

_LOOK = "from ncclkv.doctor.gpu_look import look; look()"
_WITH_TORCH = f"import torch; {_LOOK}"
_SECONDS = 20.0
"""Limit of a child: the first look at a GPU of a machine may load its driver."""

_CUPY = ("cupy-cuda12x", "cupy-cuda13x", "cupy")
_INSTALL = "-m pip install 'ncclkv[cuda12]' (or 'ncclkv[cuda13]', as the driver needs it)"
_TORCH_CUDA = re.compile(r"^cuda\b[^=]*=\s*['\"]", re.MULTILINE)


def rows() -> Iterator[Row]:
    """Yield the rows of the GPUs, CuPy, NCCL and the links between GPUs."""
    cupy, files = _cupy(), nccl_files()
    # Without any part for GPUs no child is needed: each takes half a second.
    ended = ask(_LOOK, _SECONDS) if cupy or files or shutil.which("nvidia-smi") else None
    if ended is None:
        yield Row("GPUs", "not looked for", "host memory", "neither CuPy nor NCCL is installed")
        return
    yield _gpus(ended)
    yield _cupy_row(cupy, ended)
    yield _nccl(cupy, ended)
    if len(files) > 1:
        yield _two(files, ended)
    if shutil.which("nvidia-smi"):
        yield topology()


def _gpus(ended: Ended) -> Row:
    """Return the row of the devices that this process sees."""
    told = ended.told
    if ended.problem:
        at = "while it looked for GPUs" if "driver" in told else "while it loaded libnccl"
        mend = "see whether nvidia-smi works, and whether it lists this driver's GPUs"
        why = f"the probe {ended.problem} {at}: {ended.last}"
        return Row("GPUs", "not known", "", why, mend, BLOCKS)
    if devices := told.get("devices"):
        kinds = {name: devices.count(name) for name in dict.fromkeys(devices)}
        found = ", ".join(f"{count} x {name}" for name, count in kinds.items())
        return Row("GPUs", found, f"CUDA driver {told['cuda']}")
    if told.get("driver"):
        obstacle = told.get("obstacle", "a variable of ncclkv is wrong; see its row")
        row = refused("GPUs", obstacle, WARNS, "a driver, no usable GPU")
        return row._replace(used="host memory")
    return Row("GPUs", "none", "host memory", "there is no NVIDIA driver (libcuda.so.1)")


def _cupy() -> str:
    """Return the name and version of the installed CuPy, without its import; empty without it."""
    for name in _CUPY:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return ""


def _cupy_row(installed: str, ended: Ended) -> Row:
    driver = bool(ended.told.get("driver"))
    if not installed:
        if not driver:
            return Row("CuPy", "none", "", "there is no GPU that needs it")
        return Row(
            "CuPy", "none", "", "arrays of GPUs need it", f"{sys.executable} {_INSTALL}", WARNS
        )
    spec = find_spec("cupy")
    place = str(Path(spec.origin).parent) if spec and spec.origin else ""
    return Row("CuPy", installed, place)


def _nccl(cupy: str, ended: Ended) -> Row:
    """Return the row of the libnccl that a process without torch loads."""
    told = ended.told
    if "nccl" in told:
        return Row("NCCL", told["nccl"][0], told["nccl"][1])
    if not cupy and not told.get("driver"):
        return Row("NCCL", "none", "", "there is no GPU that needs it")
    why = told.get("no nccl") or f"the probe {ended.problem}"
    has = "CuPy is there" if cupy else "a GPU's driver is there"
    mend = f"{sys.executable} {_INSTALL}"
    why = f"{has}, and values stay in host memory without NCCL: {why.partition(';')[0]}"
    return Row("NCCL", "none", "host memory", why, mend, WARNS)


def nccl_files() -> list[Path]:
    """Return the different files of libnccl that a process of this Python may load."""
    folders = [Path(each) / "lib" for each in _folders("nvidia.nccl")]
    folders += [Path(each) / "lib" for each in _folders("torch")]
    found = [path for folder in folders for path in sorted(folder.glob("libnccl.so*"))]
    found += _of_system()
    return list(dict.fromkeys(path.resolve() for path in found))


def _folders(package: str) -> list[str]:
    """Return the folders of a package, which is not imported."""
    try:
        spec = find_spec(package)
    except (ModuleNotFoundError, ValueError):
        return []
    return [] if spec is None else list(spec.submodule_search_locations or ())


def _of_system() -> Iterator[Path]:
    """Yield the libnccl that the system's loader finds."""
    tool = shutil.which("ldconfig") or "/sbin/ldconfig"
    for line in _output(tool, "-p").splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.startswith("libnccl.so"):
            yield Path(path)


def _two(files: list[Path], ended: Ended) -> Row:
    """Return the row of several files of libnccl, of which the first loaded serves a process."""
    first: Any = ended.told.get("nccl", ["", "none"])
    found = f"{len(files)}: {', '.join(map(str, files))}"
    if not _torch_may_load_it():
        return Row("NCCL files", found, first[1], "the first of them that is loaded serves all")
    later = ask(_WITH_TORCH, _SECONDS)
    with_torch = later.told.get("nccl", ["", f"not known: the probe {later.problem or 'ended'}"])
    if with_torch[1] == first[1]:
        return Row("NCCL files", found, first[1], "also after import torch")
    why = (
        f"import torch loads {with_torch[1]} first, and ncclkv then uses that one; without torch "
        f"ncclkv loads {first[1]}: two versions of NCCL may differ between ranks"
    )
    mend = "import torch before ncclkv on every rank, or on none; or keep one of the two packages"
    return Row("NCCL files", found, "the first that is loaded", why, mend, WARNS)


def _torch_may_load_it() -> bool:
    """Return whether torch is built for CUDA: its import takes seconds."""
    folder = next(iter(_folders("torch")), None)
    try:
        return folder is not None and bool(
            _TORCH_CUDA.search(Path(folder, "version.py").read_text())
        )
    except OSError:
        return False


def topology() -> Row:
    """Return the row of the links between the GPUs of this host, by ``nvidia-smi``."""
    text = _output("nvidia-smi", "topo", "-m")
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in text.splitlines()]
    gpus = [line for line in lines if line and re.fullmatch(r"GPU\d+", line[0]) and "X" in line]
    kinds = [kind for line in gpus for kind in line[1 : len(gpus) + 1] if kind != "X"]
    if not gpus:
        return Row("GPU links", "not known", "", "nvidia-smi topo -m lists no GPU")
    if not kinds:
        return Row("GPU links", "one GPU")
    found = ", ".join(f"{kind} ({kinds.count(kind) // 2} pairs)" for kind in dict.fromkeys(kinds))
    direct = all(kind.startswith("NV") for kind in kinds)
    return Row("GPU links", found, "NVLink" if direct else "also PCI or the processors' links")


def _output(*command: str) -> str:
    """Run a command to its end, and return its output; empty if it fails."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if ended.returncode else ended.stdout
