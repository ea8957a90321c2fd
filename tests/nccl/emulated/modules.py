"""Modules of CuPy that are rebuilt, because the wheel's contain the vendor's runtime."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.nccl.emulated import compiler

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Module:
    """A module in Cython.

    Attributes
    ----------
    name : str
        Name of the module, with its packages.
    path : pathlib.Path
        The source; a relative path is in CuPy's source.
    """

    name: str
    path: Path

    @property
    def file(self) -> str:
        """Return the name of the extension module's file."""
        return f"{self.name.rpartition('.')[2]}.so"


RUNTIME = Module("cupy_backends.cuda.api.runtime", Path("cupy_backends/cuda/api/runtime.pyx"))
CUB = Module("cupy.cuda.cub", HERE / "finder" / "cub.pyx")
FLAGS = (*compiler.FLAGS, "-O1", "-w", "-D_FORCE_INLINES=1", "-DCUPY_CACHE_KEY=0")


@dataclass(frozen=True)
class Translator:
    """Cython over CuPy's source.

    Attributes
    ----------
    cupy : pathlib.Path
        CuPy's source.
    cython : pathlib.Path
        The folder that Cython is in.
    cuda : tuple of pathlib.Path
        The folders of CUDA's headers.
    version_of_cuda : int
        CUDA_VERSION of these headers.
    digest : str
        A text that changes with any of these.
    """

    cupy: Path
    cython: Path
    cuda: tuple[Path, ...]
    version_of_cuda: int
    digest: str

    def source(self, module: Module, work: Path) -> compiler.Source:
        """Return a module as C++, translated once."""
        pyx = self.cupy / module.path
        key = compiler.digest(self.digest, pyx.read_bytes())
        path = work / f"{pyx.stem}-{key}.cpp"
        if not path.exists():
            self._translate(module, path)
        headers = (
            HERE / "runtime",
            # CuPy's sources include others relative to their own folders.
            (self.cupy / module.name.replace(".", "/")).parent,
            self.cupy / "cupy/_core/include/cupy",
            *self.cuda,
            Path(sysconfig.get_paths()["include"]),
        )
        return compiler.Source(path, FLAGS, headers, self.digest)

    def _translate(self, module: Module, path: Path) -> None:
        constants = {
            "CUPY_CUDA_VERSION": self.version_of_cuda,
            "CUPY_HIP_VERSION": 0,
            "CUPY_USE_CUDA_PYTHON": False,
            "CUPY_CUFFT_STATIC": False,
            "CUPY_CYTHON_VERSION": self._cython(["-V"]).split()[-1],
        }
        words = ",".join(f"{name}={value}" for name, value in constants.items())
        unfinished = path.with_suffix(".unfinished.cpp")
        self._cython(
            ["--cplus", "-3", "-I", ".", "-E", words, "--module-name", module.name,
             "-o", str(unfinished), str(module.path)]
        )  # fmt: skip
        unfinished.replace(path)

    def _cython(self, arguments: Sequence[str]) -> str:
        ended = subprocess.run(
            [sys.executable, "-m", "cython", *arguments],
            cwd=self.cupy,
            env={**os.environ, "PYTHONPATH": str(self.cython)},
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise compiler.Failed(f"cython {' '.join(arguments)}\n{ended.stderr}")
        return ended.stdout + ended.stderr
