"""Layer 3b, its build and its refusals: a sentence names what is missing."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import run, suite
from tests.harness.source import ROOT
from tests.nccl import gpu
from tests.nccl.emulated import __main__ as launcher
from tests.nccl.emulated import build, compiler, driver, fetched, stubs
from tests.nccl.emulated.missing import Missing

HEADER = """
typedef int cudaError_t;
typedef unsigned long size_t;
extern __attribute__((host)) cudaError_t cudaWritten(int x);
extern cudaError_t cudaNotWritten(void* p,
                                  size_t size);
extern cudaError_t cudaGetDriverEntryPoint(const char* name);
extern const char* cudaGetName(cudaError_t error);
"""
INTERFACE = stubs.Interface("some_api.h", "cudaError_t", "cuda", stubs.NOT_SUPPORTED)


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run this Python in the root of the project, outside of the layer."""
    inherited = {name: value for name, value in os.environ.items() if name != "NCCLKV_EMULATED"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**inherited, "PYTHONPATH": "", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_stubs_are_those_of_functions_with_an_error_code(tmp_path: Path) -> None:
    (tmp_path / "some_api.h").write_text(HEADER)
    assert stubs.names(INTERFACE, [tmp_path]) == ["cudaNotWritten", "cudaWritten"]


def test_a_stub_says_its_name_and_gives_way_to_what_is_written(tmp_path: Path, capfd) -> None:
    (tmp_path / "some_api.h").write_text(HEADER)
    sources = {"stubs.c": stubs.source([INTERFACE], [tmp_path], ["cuLookedUp"])}
    sources["own.cc"] = 'extern "C" int cudaWritten(int x) { return x; }'
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    objects = compiler.compile_all(
        [
            compiler.Source(tmp_path / "stubs.c", ("-x", "c", *compiler.FLAGS), (), ""),
            compiler.Source(tmp_path / "own.cc", compiler.OWN_FLAGS, (), ""),
        ],
        tmp_path / "objects",
    )
    compiler.link(tmp_path / "library.so", objects)
    library = ctypes.CDLL(str(tmp_path / "library.so"))
    assert library.cudaWritten(7) == 7
    assert library.cudaNotWritten(None, 0) == 801
    assert library.cuLookedUp() == 801
    said = "emulated: cudaNotWritten is not emulated\nemulated: cuLookedUp is not emulated\n"
    assert capfd.readouterr().err == said


def test_an_object_is_made_once_and_again_after_a_change(tmp_path: Path) -> None:
    path = tmp_path / "one.cc"
    path.write_text("int one() { return 1; }")
    source = compiler.Source(path, compiler.OWN_FLAGS, (), "headers")
    (first,) = compiler.compile_all([source], tmp_path)
    made = first.stat().st_mtime_ns
    assert compiler.compile_all([source], tmp_path) == [first]
    assert first.stat().st_mtime_ns == made
    path.write_text("int one() { return 2; }")
    (second,) = compiler.compile_all([source], tmp_path)
    (third,) = compiler.compile_all(
        [compiler.Source(path, compiler.OWN_FLAGS, (), "other headers")], tmp_path
    )
    assert len({first, second, third}) == 3


def test_without_a_compiler_a_sentence_says_so(tmp_path: Path) -> None:
    for module in ("tests.nccl.emulated.build", "tests.nccl.emulated"):
        ended = python("-m", module, "true", PATH=str(tmp_path))
        assert ended.returncode == 2
        assert ended.stderr == (
            "layer 3b cannot be built here: there is no g++ on PATH (Debian and Ubuntu have it in "
            "the package g++)\n"
        )


def test_a_source_that_does_not_compile_shows_what_the_compiler_says(tmp_path: Path) -> None:
    path = tmp_path / "wrong.cc"
    path.write_text("int wrong() { return missing; }")
    with pytest.raises(compiler.Failed, match=r"wrong.cc:1:.*missing"):
        compiler.compile_all([compiler.Source(path, compiler.OWN_FLAGS, (), "")], tmp_path)
    assert not list(tmp_path.glob("*.o"))


def test_a_version_of_cupy_without_a_known_checksum_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Missing, match=r"CuPy 14.999.0 is installed, and the checksum .* 14.2.0"):
        fetched.source_of_cupy("14.999.0", tmp_path)


def test_a_file_with_another_checksum_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cupy.tar.gz").write_bytes(b"something else")
    with pytest.raises(Missing, match=r"cupy.tar.gz has the SHA-256 [0-9a-f]{64}, and it should"):
        fetched.check(tmp_path / "cupy.tar.gz", fetched.RELEASES["14.2.0"].sha256)


def test_what_pip_cannot_fetch_is_named() -> None:
    wanted = ("download", "--no-deps", "--no-index", "--find-links", "/nowhere", "no-such==1")
    with pytest.raises(Missing, match=r"pip cannot fetch no-such==1: ERROR: No matching"):
        fetched.pip(*wanted)


def test_what_was_fetched_halfway_is_fetched_anew(tmp_path: Path) -> None:
    def breaks(target: Path) -> None:
        (target / "half").touch()
        raise Missing("the network")

    with pytest.raises(Missing):
        fetched._once(tmp_path / "tools", breaks)
    assert not (tmp_path / "tools").exists()
    folder = fetched._once(tmp_path / "tools", lambda target: (target / "all").touch())
    assert [path.name for path in folder.iterdir()] == ["all"]
    assert fetched._once(tmp_path / "tools", breaks) == folder


@pytest.mark.parametrize(
    "sign",
    [
        "proc/driver/nvidia/version",
        "dev/nvidiactl",
        "usr/lib64/libcuda.so.1",
        "usr/lib/libcuda.so.1",
    ],
)
def test_signs_of_a_driver(sign: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert driver.present(tmp_path / "ours", tmp_path) == ""
    (tmp_path / sign).parent.mkdir(parents=True)
    (tmp_path / sign).touch()
    assert driver.present(tmp_path / "ours", tmp_path)


def test_a_driver_on_the_path_of_the_loader_is_one_but_for_ours(
    tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    assert driver.present(tmp_path, tmp_path / "root") == ""
    found = driver.present(tmp_path / "ours", tmp_path / "root")
    assert found == str(tmp_path / "libcuda.so.1")


def test_the_variables_of_a_command() -> None:
    built = build.Built(build.ROOT / "key")
    before = {"PYTHONPATH": "/some/folder", "LD_LIBRARY_PATH": "/lib", "HOME": "/home"}
    variables = launcher.environment(built, before)
    assert variables["NCCLKV_EMULATED"] == "1"
    assert variables["CUPY_ACCELERATORS"] == ""
    finder = str(build.HERE / "finder")
    assert variables["PYTHONPATH"] == f"{finder}:{ROOT}:/some/folder"
    again = launcher.environment(built, variables)
    assert again == variables, "a command of the layer may start another in it"
    assert variables["LD_LIBRARY_PATH"] == "/lib", "no process finds our libcuda by its name alone"


def test_caches_of_kernels_are_no_gpus(monkeypatch) -> None:
    variables = launcher.environment(build.Built(build.ROOT / "key"), {})
    caches = [variables[name] for name in ("CUPY_CACHE_DIR", "NCCLKV_KERNEL_CACHE")]
    assert len(set(caches)) == 2
    assert all(Path(cache).is_relative_to(ROOT / "build" / "emulated") for cache in caches)


def test_an_emulated_device_is_no_gpu_where_one_is_required(monkeypatch, capfd) -> None:
    monkeypatch.setenv("NCCLKV_EMULATED", "1")
    monkeypatch.setenv("NCCLKV_REQUIRE_GPU", "1")
    with pytest.raises(
        pytest.fail.Exception, match="the device of layer 3b is emulated, and no GPU"
    ):
        gpu.need_gpu()
    assert run.main(["gpu"]) == 1
    assert "no test of a GPU can run: the device of layer 3b is emulated" in capfd.readouterr().out


def test_nothing_is_measured_on_an_emulated_device(tmp_path: Path) -> None:
    for place in ("gpu", "host"):
        ended = python("-m", "bench", place, "--quick", NCCLKV_EMULATED="1")
        assert ended.returncode == 2
        assert "its times are not those of a GPU" in ended.stderr
    ended = python("-m", "tests.on_gpu", str(tmp_path), str(tmp_path), NCCLKV_EMULATED="1")
    assert ended.returncode == 2
    assert "nothing it shows is a result of one" in ended.stderr
    ended = subprocess.run(
        ["launch/on_gpu.sh", str(tmp_path / "out")],
        cwd=ROOT,
        env={**os.environ, "NCCLKV_EMULATED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "nothing it shows is a result of one" in ended.stderr
    assert not (tmp_path / "out").exists()


def test_the_runs_are_those_on_a_gpu() -> None:
    names = [each.name for each in suite.emulated_suite()]
    assert {f"emulated-{each.name}" for each in suite.gpu_suite()} < set(names)
    for each in (*suite.emulated_suite(), *suite.emulated_few()):
        assert each.command[:3] == suite.INSIDE
    commands = {each.name: each.command for each in suite.emulated_suite()}
    for each in suite.gpu_suite():
        assert commands[f"emulated-{each.name}"] == (*suite.INSIDE, *each.command)


def finder() -> Any:
    """Load the finder without installing it."""
    path = build.HERE / "finder" / "places.py"
    spec = importlib.util.spec_from_file_location("places_under_test", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("path", "is_vendors"),
    [
        ("/v/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12", True),
        ("/usr/local/cuda/lib64/libcudart.so.13.0.48", True),
        ("/usr/local/cuda/lib64/libcublasLt.so.12", True),
        ("/v/site-packages/nvidia/cu13/lib/libnccl.so.2", True),
        ("/v/site-packages/cupy/cuda/cub.cpython-311-x86_64-linux-gnu.so", True),
        ("/v/site-packages/cupy/random/_generator_api.cpython-311-x86_64-linux-gnu.so", True),
        ("/v/site-packages/cupy_backends/cuda/api/runtime.cpython-313-x86_64-linux-gnu.so", True),
        ("/v/site-packages/cupy/cuda/memory.cpython-311-x86_64-linux-gnu.so", False),
        ("/p/build/emulated/key/lib/libemulated_cudart.so", False),
        ("/usr/lib/x86_64-linux-gnu/libcurl.so.4", False),
    ],
)
def test_files_of_the_vendors_runtime_are_known_by_name(path: str, is_vendors: bool) -> None:
    assert bool(finder().VENDORS.search(path)) == is_vendors
