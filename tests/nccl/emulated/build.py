"""The libraries of layer 3b, built from sources of the project and CuPy's own.

``python -m tests.nccl.emulated.build`` builds them into ``build/emulated`` and prints where they
are.  What is fetched stays there when sources change, and only what has changed is compiled.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.nccl.emulated import compiler, fetched, stubs
from tests.nccl.emulated.missing import Missing

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2] / "build" / "emulated"
MODULE = "cupy_backends.cuda.api.runtime"
"""CuPy's module that is built anew: the wheel's has the vendor's runtime in it."""

CUDART = "libemulated_cudart.so"


@dataclass(frozen=True)
class Built:
    """What was built.

    Attributes
    ----------
    folder : pathlib.Path
        All of it; its name changes with any source and any version.
    """

    folder: Path

    @property
    def libraries(self) -> Path:
        """The folder of the shared libraries, for LD_LIBRARY_PATH."""
        return self.folder / "lib"

    @property
    def module(self) -> Path:
        """CuPy's module over the emulated runtime."""
        return self.folder / "runtime.so"


@dataclass(frozen=True)
class Recipe:
    """What a build is made from."""

    wheels: fetched.Installed
    cupy: Path
    cuda: tuple[Path, ...]
    cython: Path

    @cached_property
    def version_of_cuda(self) -> int:
        """CUDA_VERSION of the headers."""
        (header,) = (path for folder in self.cuda for path in folder.glob("cuda.h"))
        found = re.search(r"#define CUDA_VERSION (\d+)", header.read_text())
        assert found
        return int(found[1])

    @cached_property
    def headers(self) -> str:
        """All that the headers of others depend on."""
        nccl = compiler.digest_of([self.wheels.nccl / "nccl.h"])
        return f"{self.wheels.cupy} {self.version_of_cuda} {nccl} {sys.version}"

    def own(self, folder: str) -> list[compiler.Source]:
        """Return the sources of the project in a folder."""
        include = (HERE / folder, HERE / "runtime", self.wheels.nccl, *self.cuda)
        ours = [*(HERE / folder).glob("*.h"), *(HERE / "runtime").glob("*.h")]
        digest = compiler.digest(self.headers, compiler.digest_of(sorted(set(ours))))
        paths = sorted((HERE / folder).glob("*.cc"))
        return [compiler.Source(path, compiler.OWN_FLAGS, include, digest) for path in paths]

    def stubs(
        self, name: str, interfaces: Sequence[stubs.Interface], work: Path, driver: Sequence[str]
    ) -> compiler.Source:
        """Return the source of what is not emulated."""
        key = compiler.digest(self.headers, compiler.digest_of([HERE / "stubs.py"]))
        path = work / f"{name}-{key}.c"
        if not path.exists():
            include = (HERE / "runtime", self.wheels.nccl, *self.cuda)
            _write(path, stubs.source(interfaces, include, driver))
        return compiler.Source(path, ("-x", "c", *compiler.FLAGS), (), "")

    def module(self, work: Path) -> compiler.Source:
        """Return CuPy's module as C++, which Cython makes once."""
        path = work / f"runtime-{compiler.digest(self.headers)}.cpp"
        if not path.exists():
            self._translate(path)
        include = (
            HERE / "runtime",
            self.cupy / MODULE.replace(".", "/").rpartition("/")[0],
            self.cupy / "cupy/_core/include/cupy",
            *self.cuda,
            Path(sysconfig.get_paths()["include"]),
        )
        flags = (*compiler.FLAGS, "-O1", "-w", "-D_FORCE_INLINES=1", "-DCUPY_CACHE_KEY=0")
        return compiler.Source(path, flags, include, self.headers)

    def _translate(self, path: Path) -> None:
        version = subprocess.run(
            [sys.executable, "-m", "cython", "-V"],
            env={**os.environ, "PYTHONPATH": str(self.cython)},
            capture_output=True,
            text=True,
            check=True,
        )
        constants = {
            "CUPY_CUDA_VERSION": self.version_of_cuda,
            "CUPY_HIP_VERSION": 0,
            "CUPY_USE_CUDA_PYTHON": False,
            "CUPY_CUFFT_STATIC": False,
            "CUPY_CYTHON_VERSION": (version.stdout + version.stderr).split()[-1],
        }
        words = ",".join(f"{name}={value}" for name, value in constants.items())
        unfinished = path.with_suffix(".unfinished.cpp")
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "cython", "--cplus", "-3", "-E", words),
                *("--module-name", MODULE, "-o", str(unfinished)),
                MODULE.replace(".", "/") + ".pyx",
            ],
            cwd=self.cupy,
            env={**os.environ, "PYTHONPATH": str(self.cython)},
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise compiler.Failed(f"Cython cannot translate {MODULE}:\n{ended.stderr}")
        unfinished.replace(path)


def build() -> Built:
    """Build what is not built yet; other processes that want the same wait meanwhile."""
    compiler.gxx()
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        raise Missing(
            "there is no Python.h for this Python (Debian and Ubuntu have it in python3-dev)"
        )
    wheels = fetched.installed()
    with _alone():
        recipe = Recipe(
            wheels,
            fetched.source_of_cupy(wheels.cupy, ROOT / "fetched"),
            tuple(fetched.headers(wheels.cuda, ROOT / "tools")),
            fetched.cython(wheels.cupy, ROOT / "tools"),
        )
        return _built(recipe)


@contextmanager
def _alone() -> Iterator[None]:
    """Hold the lock of the folder; the system gives it back when a process dies."""
    ROOT.mkdir(parents=True, exist_ok=True)
    with (ROOT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _built(recipe: Recipe) -> Built:
    """Compile and link; all that is already there is taken as it is."""
    work = ROOT / "objects"
    work.mkdir(parents=True, exist_ok=True)
    runtime = [
        *recipe.own("runtime"),
        recipe.stubs(
            "cuda", (stubs.RUNTIME, stubs.PROFILER), work, stubs.driver_names(recipe.cupy)
        ),
    ]
    nccl = [*recipe.own("nccl"), recipe.stubs("nccl", (stubs.NCCL,), work, ())]
    module = recipe.module(work)
    sources = [*runtime, *nccl, module]
    here = compiler.digest_of([HERE / "build.py", HERE / "compiler.py"])
    built = Built(ROOT / compiler.digest(here, *(source.key() for source in sources)))
    if built.folder.is_dir():
        return built
    objects = dict(zip(sources, compiler.compile_all(sources, work), strict=True))
    unfinished = Built(ROOT / f".{built.folder.name}")
    shutil.rmtree(unfinished.folder, ignore_errors=True)
    _link(unfinished, [objects[s] for s in runtime], [objects[s] for s in nccl], objects[module])
    unfinished.folder.rename(built.folder)
    return built


def _link(built: Built, runtime: Sequence[Path], nccl: Sequence[Path], module: Path) -> None:
    folder = built.libraries
    cudart = ("-Wl,--no-as-needed", f"-L{folder}", f"-l:{CUDART}")
    beside = (*cudart, "-Wl,-rpath,$ORIGIN")
    compiler.link(folder / CUDART, runtime, f"-Wl,-soname,{CUDART}", "-ldl", "-lrt")
    compiler.link(folder / "libcuda.so.1", (), "-Wl,-soname,libcuda.so.1", *beside)
    compiler.link(folder / "libnccl.so.2", nccl, "-Wl,-soname,libnccl.so.2", "-lrt", *beside)
    compiler.link(built.module, (module,), *cudart, "-Wl,-rpath,$ORIGIN/lib")


def _write(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text)
    unfinished.replace(path)


def main() -> int:
    try:
        print(build().folder)
    except Missing as missing:
        print(f"layer 3b cannot be built here: {missing}", file=sys.stderr)
        return 2
    except compiler.Failed as failed:
        print(failed, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
