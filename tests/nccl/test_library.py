"""Layer 3: the real libnccl, on a machine that need not have a GPU; and the choice of its copy."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ncclkv.comm.nccl import library
from ncclkv.comm.nccl.binding import DTYPES, OPS, version_text
from ncclkv.comm.nccl.ctypes_binding import _RESULTS, CtypesBinding
from ncclkv.comm.nccl.discovery import OLDEST_NCCL
from ncclkv.comm.nccl.library import PROTOTYPES, SONAME, UNIQUE_ID_BYTES, Config, NcclLibrary, load
from ncclkv.errors import CommAborted, LaunchError

try:
    load()
except LaunchError:
    pytest.skip("layer 3 needs libnccl: pip install nvidia-nccl-cu12", allow_module_level=True)


def has_gpu() -> bool:
    cupy = pytest.importorskip("cupy", reason="layer 3 needs CuPy: pip install 'ncclkv[cuda12]'")
    return bool(cupy.cuda.is_available())


NO_GPU = pytest.mark.skipif(has_gpu(), reason="there is a GPU here")


@pytest.fixture(scope="module")
def binding() -> CtypesBinding:
    return CtypesBinding(timeout=10)


@pytest.fixture(scope="module")
def header() -> str:
    """Return ``nccl.h`` of the wheel."""
    path = Path(load().path).parents[1] / "include" / "nccl.h"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    return path.read_text()


def nobody() -> None:
    """Return that no rank has left."""


def test_version_is_new_enough(binding):
    assert binding.version() >= OLDEST_NCCL
    assert version_text(binding.version()).count(".") == 2


def test_the_library_is_named_and_there_is_one_copy(binding):
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "libnccl.so" in line}
    assert paths == {binding.library.path}


def test_numbers_are_those_of_the_header(header):
    for name, code in DTYPES.items():
        assert re.search(rf"\bnccl{name.capitalize()}\s*=\s*{code},", header)
    for name, code in OPS.items():
        assert re.search(rf"\bnccl{name.capitalize()}\s*=\s*{code},", header)
    for code, name in _RESULTS.items():
        assert re.search(rf"\b{name}\s*=\s*{code},", header)


def test_the_configuration_is_how_that_of_the_header_begins(header):
    fields = re.search(r"typedef struct ncclConfig_v\d+ \{(.*?)\} ncclConfig_t;", header, re.S)
    assert fields
    names = re.findall(r"^\s*[\w\s]+?[\s*](\w+);", fields[1], re.M)
    assert names[: len(Config._fields_)] == [field[0] for field in Config._fields_]
    assert "#define NCCL_API_MAGIC 0xcafebeef" in header
    assert "#define NCCL_CONFIG_UNDEF_INT INT_MIN" in header
    config = Config()
    assert (config.size, config.magic, config.cgaClusterSize) == (48, 0xCAFEBEEF, -(2**31))


C_TYPES = {
    "ncclComm_t": ctypes.c_void_p,
    "cudaStream_t": ctypes.c_void_p,
    "void*": ctypes.c_void_p,
    "size_t": ctypes.c_size_t,
    "int": ctypes.c_int,
    "ncclDataType_t": ctypes.c_int,
    "ncclRedOp_t": ctypes.c_int,
    "ncclUniqueId": library.UniqueId,
    "int*": ctypes.POINTER(ctypes.c_int),
    "ncclResult_t*": ctypes.POINTER(ctypes.c_int),
    "ncclComm_t*": ctypes.POINTER(ctypes.c_void_p),
    "ncclUniqueId*": ctypes.POINTER(library.UniqueId),
    "ncclConfig_t*": ctypes.POINTER(Config),
}


@pytest.mark.parametrize("name", PROTOTYPES)
def test_functions_are_declared_as_in_the_header(header, name):
    found = re.search(rf"ncclResult_t\s+{name}\(([^)]*)\);", header)
    assert found
    given = [each.replace("const ", "").strip() for each in found[1].split(",")]
    types = [re.sub(r"\s*\w+$", "", each).replace(" ", "") for each in given if each != "void"]
    assert tuple(C_TYPES[each] for each in types if each) == PROTOTYPES[name]


def test_unique_ids_are_128_bytes_and_differ(binding):
    ids = {binding.unique_id() for _ in range(3)}
    assert len(ids) == 3
    assert all(type(each) is bytes and len(each) == UNIQUE_ID_BYTES for each in ids)


def test_groups_nest(binding):
    for _ in range(2):
        binding.group_start()
    for _ in range(2):
        binding.group_end()
    with pytest.raises(CommAborted, match="ncclGroupEnd failed: ncclInvalidUsage"):
        binding.group_end()


@NO_GPU
def test_without_a_gpu_creation_fails_in_nccls_words_and_at_once(binding):
    begin = time.monotonic()
    with pytest.raises(LaunchError) as caught:
        binding.create(2, binding.unique_id(), 0, nobody)
    assert time.monotonic() - begin < 1.0
    text = str(caught.value)
    assert f"NCCL {version_text(binding.version())}: ncclCommInitRankConfig failed" in text
    assert "ncclUnhandledCudaError (unhandled cuda error" in text
    assert "NCCL's last message: Cuda failure 'CUDA driver version is insufficient" in text
    with pytest.raises(CommAborted, match="ncclGroupEnd failed"):
        binding.group_end()  # the failure left no group open


@NO_GPU
def test_without_a_gpu_the_device_is_named_first():
    with pytest.raises(LaunchError, match="cudaErrorInsufficientDriver|cudaErrorNoDevice"):
        CtypesBinding(device=0).create(1, b"\0" * UNIQUE_ID_BYTES, 0, nobody)


# The choice among copies of the library


def test_the_copy_that_is_loaded_comes_first(tmp_path):
    """Check a loaded copy under a path that no search would find."""
    copy = tmp_path / SONAME
    copy.symlink_to(load().path)
    code = (
        f"import ctypes; ctypes.CDLL({str(copy)!r})\n"
        "from ncclkv.comm.nccl import library\n"
        "library._wheel_libraries = lambda: []\n"
        "print(library.load().path)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    assert Path(run.stdout.strip()) == Path(load().path).resolve()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Record the names that are tried, and whether only a loaded copy counts; none exists."""
    names: list[tuple[str, bool]] = []

    def refuse(name: str, mode: int) -> Any:
        names.append((name, bool(mode & library.os.RTLD_NOLOAD)))
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(library.ctypes, "CDLL", refuse)
    return names


def test_the_wheel_comes_before_the_system(monkeypatch, opened, tmp_path):
    path = tmp_path / "nccl" / "lib" / SONAME
    path.parent.mkdir(parents=True)
    path.touch()
    monkeypatch.setitem(sys.modules, "nvidia.nccl", None)
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path / "nccl"), "/nowhere"]})
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(LaunchError):
        load.__wrapped__()
    assert opened == [(SONAME, True), (str(path), False), (SONAME, False)]


def test_without_a_wheel_the_system_is_asked(monkeypatch, opened):
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'nvidia'")

    monkeypatch.setattr(library.importlib.util, "find_spec", missing)
    with pytest.raises(LaunchError) as caught:
        load.__wrapped__()
    assert opened == [(SONAME, True), (SONAME, False)]
    text = str(caught.value)
    assert "there is no NCCL library (libnccl.so.2: cannot open shared object file)" in text
    assert "pip install 'ncclkv[cuda12]' (or 'ncclkv[cuda13]', as the driver needs it)" in text


def test_a_library_without_a_function_is_too_old():
    class Old:
        ncclGetVersion = load().loaded.ncclGetVersion

    with pytest.raises(LaunchError, match="has no ncclGetUniqueId: this NCCL is too old; pip"):
        NcclLibrary(Old()).declare()


def test_no_other_library_is_imported_for_it():
    code = (
        "import ncclkv.comm.nccl.ctypes_binding as it, sys; it.CtypesBinding(); "
        "assert not {'cupy', 'torch', 'nccl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)
