"""Layer 3b, its environment: libraries with the vendor's runtime are refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.source import ROOT
from tests.nccl.emulated import build, compiler

REFUSED = (
    "cupy.cuda.thrust",
    "cupy.cuda.jitify",
    "cupy.cuda.cufft",
    "cupy_backends.cuda.libs.cublas",
    "cupy_backends.cuda.libs.curand",
    "cupy_backends.cuda.libs.cusolver",
    "cupy_backends.cuda.libs.cusparse",
    "cuda.bindings",
)


def python(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in this environment, with other variables."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def said(program: str, *arguments: str, **variables: str) -> str:
    """Return the output of a program that succeeds."""
    ended = python(program, *arguments, **variables)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def empty_library(path: Path) -> Path:
    """Make an empty library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    compiler.link(path, [], "-x", "c", "/dev/null")
    return path


def test_cupy_uses_the_emulated_runtime() -> None:
    import cupy
    from cupy_backends.cuda.api import runtime

    assert Path(runtime.__file__).is_relative_to(build.ROOT)
    assert cupy.cuda.is_available()
    assert "emulated" in cupy.cuda.runtime.getDeviceProperties(0)["name"].decode().lower()


USES_ALL = """
import cupy, re
import cupy.cuda.nccl
from pathlib import Path
a = cupy.arange(1000, dtype=cupy.float32)
with cupy.cuda.Stream(non_blocking=True) as stream:
    b = (a * 2 + 1).get()
    stream.synchronize()
assert b[-1] == 1999
assert cupy.cuda.nccl.get_version() > 20000
cupy.cuda.runtime._getLocalRuntimeVersion()
for line in Path("/proc/self/maps").read_text().splitlines():
    words = line.split(maxsplit=5)
    if len(words) == 6 and words[5].startswith("/") and Path(words[5]).is_file():
        print(words[5])
"""


def test_no_vendors_runtime_is_mapped_after_arrays_streams_and_kernels() -> None:
    files = {Path(line) for line in said(USES_ALL).splitlines()}
    assert any(path.name == "libemulated_cudart.so" for path in files)
    # The vendor's runtime begins with this function of the driver, in every library that contains
    # it.
    with_it = [path for path in files if b"cuGetExportTable" in path.read_bytes()]
    assert with_it == []


@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_brings_the_vendors_runtime_is_refused(name: str) -> None:
    program = "import importlib, sys, cupy; importlib.import_module(sys.argv[1])"
    ended = python(program, name)
    assert ended.returncode == 1
    assert f"ImportError: layer 3b, CuPy on an emulated device: {name} is refused" in ended.stderr


@pytest.mark.parametrize(
    ("use", "name"),
    [
        ("cupy.cuda.cub.cub_scan(cupy.empty(3), 0)", "cupy.cuda.cub"),
        ("cupy.random.default_rng(1)", "cupy.random._generator_api"),
        ("cupy.random.Generator", "cupy.random._generator_api"),
        ("cupy.random._generator.FeistelBijection(1, 2)", "cupy.random._generator_api"),
        ("cupy.ones((2, 2)) @ cupy.ones((2, 2))", "library cublas"),
        ("cupy.random.rand(3)", "library curand"),
        ("cupy.fft.fft(cupy.ones(4))", "library cufft"),
    ],
)
def test_what_would_use_the_vendors_runtime_is_refused_in_words(use: str, name: str) -> None:
    ended = python(f"import cupy; {use}")
    assert ended.returncode == 1
    assert f"CuPy on an emulated device: {name} is refused" in ended.stderr.replace(
        "the lib", "lib"
    )


def test_a_library_of_the_vendors_that_is_mapped_at_the_end_is_an_error(tmp_path: Path) -> None:
    path = empty_library(tmp_path / "libcudart.so.12")
    ended = python("import cupy, ctypes, sys; ctypes.CDLL(sys.argv[1])", str(path))
    assert ended.returncode == 70
    assert f"the vendor's runtime is mapped: {path}\n" in ended.stderr


def test_a_process_does_not_start_where_a_driver_is(tmp_path: Path) -> None:
    empty_library(tmp_path / "libcuda.so.1")
    ended = python("print('it runs')", LD_LIBRARY_PATH=str(tmp_path))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "it does not start where a driver is present" in ended.stderr
    assert str(tmp_path / "libcuda.so.1") in ended.stderr


def test_a_command_does_not_start_where_a_driver_is(tmp_path: Path) -> None:
    empty_library(tmp_path / "libcuda.so.1")
    command = [sys.executable, "-m", "tests.nccl.emulated", "-c", "print('it runs')"]
    outside = {name: value for name, value in os.environ.items() if name != "NCCLKV_EMULATED"}
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**outside, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "layer 3b does not start where a driver is present, and there is "
        f"{tmp_path / 'libcuda.so.1'}\n"
    )


def test_without_the_finder_no_process_finds_our_driver() -> None:
    program = "import ctypes\ntry: ctypes.CDLL('libcuda.so.1')\nexcept OSError: print('none')"
    assert said(program, PYTHONPATH="") == "none"


def test_another_sitecustomize_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.HIDDEN = 1")
    path = f"{os.environ['PYTHONPATH']}:{tmp_path}"
    program = "import cupy; print(HIDDEN, cupy.cuda.is_available())"
    assert said(program, PYTHONPATH=path) == "1 True"


COUNT = "import cupy; print(cupy.cuda.runtime.getDeviceCount())"


def test_how_many_devices_there_are() -> None:
    usual = {"EMULATED_DEVICES": "", "NCCLKV_SHARE_GPU": "0"}
    assert said(COUNT, **usual) == "4", "one for each of up to four ranks"
    assert said(COUNT, **{**usual, "NCCLKV_SHARE_GPU": "1"}) == "1"
    chosen = {**usual, "EMULATED_DEVICES_CHOSEN": "", "EMULATED_DEVICES": "3"}
    assert said(COUNT, **chosen) == "3"
    assert said(COUNT, **{**chosen, "NCCLKV_SHARE_GPU": "1"}) == "3"


def test_a_child_process_chooses_its_devices_anew() -> None:
    parent = (
        "import os, subprocess, sys\n"
        "os.environ['NCCLKV_SHARE_GPU'] = '1'\n"
        f"subprocess.run([sys.executable, '-c', {COUNT!r}], check=True)"
    )
    assert said(parent, EMULATED_DEVICES="", NCCLKV_SHARE_GPU="0") == "1"


def test_kernels_are_kept_where_no_gpus_are(tmp_path: Path) -> None:
    program = (
        "import cupy, ncclkv; from ncclkv import env\n"
        "with ncclkv.create('nccl') as kv: kv.init('w', cupy.zeros(3))\n"
        "print(env.kernel_cache())"
    )
    folder = said(program, HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert Path(folder).is_relative_to(build.ROOT)
    assert Path(os.environ["CUPY_CACHE_DIR"]).is_relative_to(build.ROOT)
    assert list(tmp_path.iterdir()) == []
