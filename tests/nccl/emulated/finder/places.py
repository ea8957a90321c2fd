"""A finder that gives CuPy the emulated modules, and refuses modules with the vendor's runtime."""

from __future__ import annotations

import atexit
import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
LAYER = "layer 3b, CuPy on an emulated device"
LIBRARIES = {
    "cudart": "libemulated_cudart.so",
    "cuda": "libcuda.so.1",
    "nccl": "libnccl.so.2",
}
"""The libraries for names of cuda.pathfinder."""

REFUSED = {
    "cupy.cuda.thrust",
    "cupy.cuda.jitify",
    "cupy.cuda.cufft",
    "cupy_backends.cuda.libs.cublas",
    "cupy_backends.cuda.libs.curand",
    "cupy_backends.cuda.libs.cusolver",
    "cupy_backends.cuda.libs.cusparse",
    "cupy_backends.cuda.libs.cusparselt",
    "cupy_backends.cuda.libs.cutensor",
    "cuda.bindings",
}
"""Modules that contain the vendor's runtime, or load a library with it."""

VENDORS = re.compile(
    r"/lib(cudart|cublas|cublasLt|nvblas|cufft|curand|cusolver|cusparse|cutensor|nvrtc|cudnn)"
    r"(\.|Mg|w\.)|/nvidia/.*/lib/lib|/cupy/cuda/(cub|thrust|jitify)\.|/random/_generator_api\."
    r"|/cuda/api/runtime\.cpython"
)
"""Names of files that must not be mapped; see `mapped`."""


def install() -> None:
    """Install the finder, or end the process if a driver is present."""
    built = Path(os.environ["EMULATED_BUILD"])
    found = _driver().present(built / "lib")
    if found:
        message = f"{LAYER}: it does not start where a driver is present, and there is {found}\n"
        sys.stderr.write(message)
        sys.stderr.flush()
        # After an exception, Python would run on without the refusals below.
        os._exit(2)
    _choose_devices()
    # Loaded libraries are found by name afterwards; ncclkv finds the driver so before CuPy loads.
    loaded = {name: ctypes.CDLL(str(built / "lib" / file)) for name, file in LIBRARIES.items()}
    atexit.register(_check_maps, built)
    sys.meta_path.insert(0, Finder(built, loaded))


def _driver() -> Any:
    """Return driver.py, loaded from its file, since `tests` may be another package here."""
    spec = importlib.util.spec_from_file_location("_emulated_driver", HERE.parent / "driver.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _choose_devices() -> None:
    """Give each rank a device, or all ranks one, unless the environment has a number."""
    if os.environ.get("EMULATED_DEVICES") and not os.environ.get("EMULATED_DEVICES_CHOSEN"):
        return
    shared = os.environ.get("NCCLKV_SHARE_GPU") == "1"
    os.environ["EMULATED_DEVICES"] = "1" if shared else "4"
    # Processes that this one starts choose again.
    os.environ["EMULATED_DEVICES_CHOSEN"] = "1"


class Finder(importlib.abc.MetaPathFinder):
    """A finder of the modules that replace the wheel's.

    Parameters
    ----------
    built : pathlib.Path
        The folder of build.py's result.
    loaded : dict of str to ctypes.CDLL
        The emulated libraries, by their names in cuda.pathfinder.
    """

    def __init__(self, built: Path, loaded: dict[str, ctypes.CDLL]) -> None:
        self._built = built
        self._loaded = loaded
        self._afterwards: dict[str, Callable[[ModuleType], None]] = {
            "cuda.pathfinder": self._mend_pathfinder,
            "cupy_backends.cuda.libs.nvrtc": _install_kernels,
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in REFUSED:
            raise ImportError(
                f"{LAYER}: {name} is refused, since it brings the vendor's runtime", name=name
            )
        if name == "torch":
            return _torch(name, path)
        if name == "cupy_backends.cuda.api.runtime":
            return _extension(name, self._built / "runtime.so")
        if name == "cupy.cuda.cub":
            return _extension(name, self._built / "cub.so")
        if name == "cupy.random._generator_api":
            return importlib.util.spec_from_file_location(name, HERE / "generator_api.py")
        if name in self._afterwards:
            return _followed(name, path, self._afterwards[name])
        return None

    def _mend_pathfinder(self, pathfinder: ModuleType) -> None:
        """Let cuda.pathfinder find the emulated libraries and our headers, and no others."""

        def load_nvidia_dynamic_lib(libname: str) -> Any:
            if libname not in LIBRARIES:
                raise pathfinder.DynamicLibNotFoundError(
                    f"{LAYER}: the library {libname} is refused, since it brings the vendor's "
                    "runtime"
                )
            path = str(self._built / "lib" / LIBRARIES[libname])
            return pathfinder.LoadedDL(path, False, self._loaded[libname]._handle, "emulated")

        def find_nvidia_header_directory(libname: str) -> str | None:
            # Its own search may load a library of the vendor to find the path.
            return str(self._built / "include") if libname == "cudart" else None

        pathfinder.load_nvidia_dynamic_lib = load_nvidia_dynamic_lib  # type: ignore[attr-defined]
        pathfinder.find_nvidia_header_directory = (  # type: ignore[attr-defined]
            find_nvidia_header_directory
        )


def _extension(name: str, path: Path) -> importlib.machinery.ModuleSpec:
    """Return the spec of an extension module outside of its package's folder."""
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec
    return spec


def _followed(
    name: str, path: Sequence[str] | None, then: Callable[[ModuleType], None]
) -> importlib.machinery.ModuleSpec | None:
    """Return the usual spec of a module; `then` is called after its load."""
    spec = importlib.machinery.PathFinder.find_spec(name, path)
    if spec is None or spec.loader is None:
        return spec
    execute = spec.loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        then(module)

    spec.loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


def _install_kernels(nvrtc: ModuleType) -> None:
    """Replace NVRTC in CuPy's binding by g++."""
    from tests.nccl.emulated import kernels

    kernels.install(nvrtc)


def _torch(name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of torch, unless it is a build with CUDA."""
    spec = importlib.machinery.PathFinder.find_spec(name, path)
    if spec and spec.origin and (Path(spec.origin).parent / "lib/libtorch_cuda.so").exists():
        raise ImportError(
            f"{LAYER}: this build of torch is refused, since it brings the vendor's runtime; its "
            "build for CPUs is not",
            name=name,
        )
    return spec


def mapped(built: Path) -> list[str]:
    """Return the files of the vendor's runtime that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    files = {line.split(maxsplit=5)[5] for line in lines if line.count(" ") >= 5 and "/" in line}
    return sorted(
        file for file in files if VENDORS.search(file) and not file.startswith(f"{built}/")
    )


def _check_maps(built: Path) -> None:
    """End a process with an error if it has mapped the vendor's runtime."""
    found = mapped(built)
    if found:
        sys.stderr.write(f"{LAYER}: the vendor's runtime is mapped: {', '.join(found)}\n")
        sys.stderr.flush()
        os._exit(70)
