"""The libraries of layer 3b, built from the project's sources and CuPy's.

``python -m tests.nccl.emulated.build`` builds them into ``build/emulated``, and prints their
folder. Downloads are kept when sources change, and only changed sources are compiled.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.nccl.emulated import compiler, fetched, modules, stubs
from tests.nccl.emulated.missing import Missing

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2] / "build" / "emulated"
CUDART = "libemulated_cudart.so"
WHOLE = "-Wl,--no-undefined"
"""Option of the linker: an undefined symbol of a library is an error."""


@dataclass(frozen=True)
class Built:
    """The result of a build.

    Attributes
    ----------
    folder : pathlib.Path
        Folder of all files; its name changes with any source and any version.
    """

    folder: Path

    @property
    def libraries(self) -> Path:
        """Return the folder of the shared libraries."""
        return self.folder / "lib"


@dataclass(frozen=True)
class Recipe:
    """The inputs of a build."""

    wheels: fetched.Installed
    cupy: Path
    cuda: tuple[Path, ...]
    cython: Path

    @cached_property
    def header_of_cuda(self) -> Path:
        """Return the path of cuda.h, in the folder of the runtime's other headers."""
        (header,) = (path for folder in self.cuda for path in folder.glob("cuda.h"))
        return header

    @cached_property
    def version_of_cuda(self) -> int:
        """Return CUDA_VERSION of the headers."""
        found = re.search(r"#define CUDA_VERSION (\d+)", self.header_of_cuda.read_text())
        assert found
        return int(found[1])

    @cached_property
    def headers(self) -> str:
        """Return the text of everything that other headers depend on."""
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
        """Return the source of the functions that are not emulated."""
        key = compiler.digest(self.headers, compiler.digest_of([HERE / "stubs.py"]))
        path = work / f"{name}-{key}.c"
        if not path.exists():
            include = (HERE / "runtime", self.wheels.nccl, *self.cuda)
            _write(path, stubs.source(interfaces, include, driver))
        return compiler.Source(path, ("-x", "c", *compiler.FLAGS), (), "")

    def translator(self) -> modules.Translator:
        """Return the translator of CuPy's modules."""
        return modules.Translator(
            self.cupy, self.cython, self.cuda, self.version_of_cuda, self.headers
        )


def build() -> Built:
    """Build the missing parts; other processes with the same request wait meanwhile."""
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


def caches() -> Path:
    """Return the folder for compiled kernels, which depend on these sources alone."""
    sources = [HERE / "runtime" / "kernel.h", *HERE.glob("kernel*.py"), *HERE.glob("prelude/**/*")]
    files = compiler.digest_of([path for path in sources if path.is_file()])
    return ROOT / "caches" / compiler.digest(compiler.version(), sys.version, files)


@contextmanager
def _alone() -> Iterator[None]:
    """Hold the lock of the folder; the system releases it when a process dies."""
    ROOT.mkdir(parents=True, exist_ok=True)
    with (ROOT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _built(recipe: Recipe) -> Built:
    """Compile and link; existing files are used again."""
    work = ROOT / "objects"
    work.mkdir(parents=True, exist_ok=True)
    runtime = [
        *recipe.own("runtime"),
        recipe.stubs(
            "cuda", (stubs.RUNTIME, stubs.PROFILER), work, stubs.driver_names(recipe.cupy)
        ),
    ]
    nccl = [*recipe.own("nccl"), recipe.stubs("nccl", (stubs.NCCL,), work, ())]
    translator = recipe.translator()
    extensions = {
        module: translator.source(module, work) for module in (modules.RUNTIME, modules.CUB)
    }
    sources = [*runtime, *nccl, *extensions.values()]
    here = compiler.digest_of([HERE / "build.py", HERE / "compiler.py"])
    built = Built(ROOT / compiler.digest(here, *(source.key() for source in sources)))
    if built.folder.is_dir():
        return built
    objects = dict(zip(sources, compiler.compile_all(sources, work), strict=True))
    unfinished = Built(ROOT / f".{built.folder.name}")
    shutil.rmtree(unfinished.folder, ignore_errors=True)
    _link(unfinished, [objects[s] for s in runtime], [objects[s] for s in nccl])
    for module, source in extensions.items():
        _link_beside(unfinished, unfinished.folder / module.file, [objects[source]], "lib")
    # cuda.pathfinder looks for the headers here.
    (unfinished.folder / "include").symlink_to(recipe.header_of_cuda.parent)
    unfinished.folder.rename(built.folder)
    return built


def _link(built: Built, runtime: Sequence[Path], nccl: Sequence[Path]) -> None:
    """Link the libraries."""
    folder = built.libraries
    compiler.link(folder / CUDART, runtime, f"-Wl,-soname,{CUDART}", WHOLE, "-ldl")
    for name, objects in (("libcuda.so.1", ()), ("libnccl.so.2", nccl)):
        _link_beside(built, folder / name, objects, ".", f"-Wl,-soname,{name}", WHOLE, "-lrt")


def _link_beside(
    built: Built, target: Path, objects: Sequence[Path], way: str, *arguments: str
) -> None:
    """Link a library that depends on the emulated runtime, by a path relative to the target."""
    compiler.link(
        target,
        objects,
        *arguments,
        "-Wl,--no-as-needed",
        f"-L{built.libraries}",
        f"-l:{CUDART}",
        f"-Wl,-rpath,$ORIGIN/{way}",
    )


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
