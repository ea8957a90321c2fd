"""Imports between parts of the package, checked against ``docs/architecture.md``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.harness.source import PACKAGE, ROOT, Module, modules

FRAMEWORKS = {"cupy", "jax", "mxnet", "tensorflow", "torch"}
ON_GPUS = (f"{PACKAGE}.comm.nccl", f"{PACKAGE}.kernels.device")
OF_TORCH, OF_MXNET = (f"{PACKAGE}.torch",), (f"{PACKAGE}.mxnet",)
_IMPORTERS = {"cupy": ON_GPUS, "torch": OF_TORCH, "mxnet": OF_MXNET}
USED_LATER = (
    "checkpoint",
    "comm.nccl",
    "kernels.device",
    "kernels.programs",
    "mxnet.",
    "optimizer",
    "testing",
    "torch",
    "trainer",
)
"""Parts of the package that a store on a host needs for some of its verbs alone."""
FOLDERS = [module.name for module in modules() if module.path.name == "__init__.py"]
PAGE = ROOT / "docs" / "architecture.md"

Layers = dict[str, set[str]]
"""Parts that each part of the package may import, in the page's order."""


def parse(page: str) -> Layers:
    """Read the block of the page that begins with ```imports."""
    block = page.split("```imports\n")[1].split("```")[0]
    lines = [line.split(":") for line in block.splitlines() if line.strip()]
    return {part.strip(): set(allowed.split()) for part, allowed in lines}


def part_of(module: str, layers: Layers) -> str:
    """Return the part that a module belongs to: the longest prefix of its name."""
    inside = module.removeprefix(f"{PACKAGE}.")
    parts = [part for part in layers if inside == part or inside.startswith(f"{part}.")]
    return max(parts, key=len, default=f"{inside}, which the page does not list")


def breaches(found: Sequence[Module], layers: Layers) -> list[str]:
    """Describe the imports that the page does not allow."""
    known = {module.name for module in found}
    wrong = []
    for module in found:
        own = part_of(module.name, layers)
        for each in module.imports(known):
            if each.name.split(".")[0] != PACKAGE:
                continue
            other = part_of(each.name, layers)
            if other != own and other not in layers.get(own, set()):
                wrong.append(f"{module.where(each.line)}: {own} imports {other}")
    return wrong


def foreign(found: Sequence[Module]) -> list[str]:
    """Describe forbidden imports: array frameworks, and CuPy and mpi4py elsewhere or too early."""
    wrong = []
    for module in found:
        for each in module.imports(set()):
            top = each.name.split(".")[0]
            allowed = module.name.startswith(_IMPORTERS.get(top, ()))
            if top in FRAMEWORKS and not allowed:
                wrong.append(f"{module.where(each.line)}: imports {top}; look in sys.modules")
            if top == "mpi4py" and not module.name.startswith(f"{PACKAGE}.comm.host"):
                wrong.append(f"{module.where(each.line)}: imports mpi4py; only comm/host does")
            if top in ("cupy", "mpi4py") and each.at_import:
                wrong.append(f"{module.where(each.line)}: imports {top} before it is needed")
    return wrong


def test_parts_import_what_the_page_allows():
    assert breaches(modules(), parse(PAGE.read_text())) == []


def test_page_has_an_order():
    layers = parse(PAGE.read_text())
    above: set[str] = set()
    for part, allowed in layers.items():
        assert allowed <= above, f"{part} may import {allowed - above}, not above it in {PAGE.name}"
        above.add(part)


def test_page_lists_every_part_and_no_other():
    layers = parse(PAGE.read_text())
    assert {part_of(module.name, layers) for module in modules()} == set(layers)


def test_no_framework_is_imported_and_mpi4py_late():
    assert foreign(modules()) == []


def test_import_of_the_package_starts_nothing():
    program = f"import sys, {PACKAGE}; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert PACKAGE in loaded
    assert not {"mpi4py", "ml_dtypes", *FRAMEWORKS} & set(loaded)


def test_a_store_that_sums_imports_no_more():
    program = f"""
import sys, {PACKAGE}
with {PACKAGE}.create("local") as kv:
    kv.init("w", 1.0)
    kv.push("w", 2.0)
    kv.pull("w")
print(*sys.modules)
"""
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    parts = {name.removeprefix(f"{PACKAGE}.") for name in loaded if name.startswith(PACKAGE)}
    assert "store.kvstore" in parts
    assert not {part for part in parts if part.startswith(USED_LATER)}


def circles(found: Sequence[Module], folder: str = "") -> list[set[str]]:
    """Return the sets of files that import each other in a circle, type-only imports included.

    Parameters
    ----------
    found : sequence of Module
    folder : str
        Of the files; each of its own folders counts as one file.
    """

    def room(name: str) -> str:
        return ".".join(name.split(".")[: len(folder.split(".")) + 1]) if folder else name

    known = {module.name for module in found}
    beneath: dict[str, set[str]] = {room(name): set() for name in known}
    for module in found:
        beneath[room(module.name)] |= {
            room(each.name) for each in module.imports(known) if each.name in known
        } - {room(module.name)}
    reached = {name: reachable(name, beneath) for name in beneath}
    rings = [{other for other in reached[name] if name in reached[other]} for name in beneath]
    return [ring for number, ring in enumerate(rings) if ring and ring not in rings[:number]]


def reachable(name: str, beneath: dict[str, set[str]]) -> set[str]:
    """Return all modules that a module imports, directly or not."""
    found: set[str] = set()
    left = [*beneath[name]]
    while left:
        other = left.pop()
        if other not in found:
            found.add(other)
            left += beneath[other]
    return found


def test_no_circle_of_imports():
    assert circles(modules()) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_circle_of_folders(folder):
    """Check that the folders inside a folder, and its files, have an order: no import runs up."""
    inside = [each for each in modules() if f"{each.name}.".startswith(f"{folder}.")]
    assert circles(inside, folder) == []


def test_circle_of_imports_is_found(tmp_path):
    sources = {
        "a": "from ncclkv import b",
        "b": "if TYPE_CHECKING:\n    from ncclkv.c import f",
        "c": "def f():\n    import ncclkv.a",
        "d": "from ncclkv import a",
    }
    found = []
    for name, text in sources.items():
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        found.append(Module(path, f"ncclkv.{name}"))
    assert circles(found) == [{"ncclkv.a", "ncclkv.b", "ncclkv.c"}]


def test_circle_of_folders_is_found(tmp_path):
    sources = {"low.a": "", "low.b": "from ncclkv.high import c", "high.c": "import ncclkv.low.a"}
    found = []
    for name, text in sources.items():
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        found.append(Module(path, f"ncclkv.{name}"))
    assert circles(found) == []
    assert circles(found, "ncclkv") == [{"ncclkv.low", "ncclkv.high"}]


LAYERS = parse("```imports\nlow:\nhigh: low\nhigh.top: low high\n```")


@pytest.mark.parametrize(
    ("name", "source", "breach"),
    [
        ("low", "import ncclkv.high", "low imports high"),
        ("low.inner", "from .. import high", "low imports high"),
        ("low.inner", "def f():\n    from ncclkv.high import g", "low imports high"),
        ("high", "from ncclkv.high.top import f", "high imports high.top"),
        ("other", "from ncclkv import low", "other, which the page does not list imports low"),
        ("high", "from ncclkv.low import f", None),
        ("high.top", "import numpy\nfrom ncclkv import high, low", None),
    ],
)
def test_breaches_are_found(tmp_path, name, source, breach):
    known = [Module(tmp_path / "x.py", f"ncclkv.{part}") for part in ("low", "high", "high.top")]
    for module in known:
        module.path.write_text("")
    path = tmp_path / "module.py"
    path.write_text(source)
    found = breaches([*known, Module(path, f"ncclkv.{name}")], LAYERS)
    assert found == ([f"{path}:{source.count(chr(10)) + 1}: {breach}"] if breach else [])


@pytest.mark.parametrize(
    ("name", "source", "count"),
    [
        ("arrays.torch", "def f():\n    import torch", 1),
        ("arrays.torch", "from torch.utils import dlpack", 1),
        ("arrays.mxnet", "def f():\n    import mxnet", 1),
        ("mxnet.store", "import mxnet", 0),
        ("store", "def f():\n    from mpi4py import MPI", 1),
        ("arrays.cupy", "def f():\n    import cupy", 1),
        ("comm.nccl.streams", "import cupy", 1),
        ("comm.nccl.streams", "def f():\n    from cupy.cuda import nccl", 0),
        ("comm.nccl.streams", "def f():\n    import torch", 1),
        ("kernels.device", "def f():\n    import cupy", 0),
        ("kernels.host", "def f():\n    import cupy", 1),
        ("comm.host", "from mpi4py import MPI", 1),
        ("comm.host", "def f():\n    from mpi4py import MPI", 0),
        ("comm.host", "if TYPE_CHECKING:\n    from mpi4py import MPI", 0),
    ],
)
def test_foreign_imports_are_found(tmp_path, name, source, count):
    path = tmp_path / "module.py"
    path.write_text(source)
    assert len(foreign([Module(path, f"ncclkv.{name}")])) == count
