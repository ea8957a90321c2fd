"""Layer 3, without a device: compiled kernels are stored on disk, and loaded once a process."""

from __future__ import annotations

import dataclasses
import os
import pwd
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ncclkv.errors import LaunchError
from ncclkv.kernels.device import cubins, launch
from ncclkv.kernels.device.compiler import build, whole
from ncclkv.kernels.device.cubins import cubin
from ncclkv.kernels.device.kernels import DeviceKernels
from ncclkv.kernels.device.sources import COPY, NONFINITE, KernelSource

cupy = pytest.importorskip("cupy", reason="layer 3 needs CuPy: pip install 'ncclkv[cuda12]'")
try:
    cupy.cuda.nvrtc.getVersion()
except (OSError, RuntimeError) as error:
    pytest.skip(f"layer 3 needs NVRTC, which cannot be loaded: {error}", allow_module_level=True)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Return the directory of the kernels, which does not exist yet."""
    monkeypatch.setenv("NCCLKV_KERNEL_CACHE", str(tmp_path / "new" / "kernels"))
    cubins._private_folder.cache_clear()
    yield tmp_path / "new" / "kernels"
    cubins._private_folder.cache_clear()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the compiled programs, in order; NVRTC compiles them."""
    names: list[str] = []

    def count(program: KernelSource, architecture: str) -> bytes:
        names.append(f"{program} {architecture}")
        return build(program, architecture)

    monkeypatch.setattr(cubins, "build", count)
    return names


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bytes]]:
    """Record the loaded programs with their devices, by a fake CUDA."""
    loaded: list[tuple[int, bytes]] = []
    real = cupy.cuda
    cuda = mock.MagicMock(spec=real)
    cuda.nvrtc = real.nvrtc
    cuda.runtime = mock.MagicMock(spec=real.runtime)
    cuda.runtime.getDevice.return_value = 0
    cuda.get_current_stream.return_value.is_capturing.return_value = False
    cuda.Device.return_value.compute_capability = "90"

    def module() -> Any:
        made = mock.MagicMock(spec=real.Module)
        made.load.side_effect = lambda code: loaded.append((cuda.runtime.getDevice(), code))
        made.get_function.side_effect = lambda name: (cuda.runtime.getDevice(), name)
        return made

    cuda.Module = module
    monkeypatch.setattr(cupy, "cuda", cuda)
    monkeypatch.setattr(launch, "_functions", {})
    return loaded


def test_a_kernel_is_compiled_once_for_all_processes(folder, built):
    code = cubin(COPY, "sm_90")
    assert cubin(COPY, "sm_90") == code == build(COPY, "sm_90")
    assert built == ["copy sm_90"]
    (file,) = folder.iterdir()
    assert file.name.startswith("copy-sm_90-")
    assert file.suffix == ".cubin"
    program = (
        "from ncclkv.kernels.device import cubins, sources\n"
        "def refuse(*_): raise SystemExit('compiled again')\n"
        "cubins.build = refuse\n"
        "print(len(cubins.cubin(sources.COPY, 'sm_90')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == f"{len(code)}\n", done.stderr


def test_the_key_has_source_options_headers_compiler_and_architecture(folder, built, monkeypatch):
    cubin(COPY, "sm_90")
    cubin(COPY, "sm_80")
    other = dataclasses.replace(COPY, macros=COPY.macros | {"UNUSED": "1"})
    cubin(other, "sm_90")
    cubin(NONFINITE["float32"], "sm_90")
    cubin(NONFINITE["float64"], "sm_90")
    assert len(list(folder.iterdir())) == 5
    for name, value in (
        ("headers", lambda: {b"other.cuh": b"// changed"}),
        ("include_options", lambda: ("-I/elsewhere",)),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(cubins, name, value)
            keys = {cubins._key(COPY, "sm_90"), *(f.stem[-32:] for f in folder.iterdir())}
            assert len(keys) == 6, name
    with monkeypatch.context() as changed:
        changed.setattr(type(COPY), "source", "// another text")
        assert cubins._key(COPY, "sm_90") not in {f.stem[-32:] for f in folder.iterdir()}
    with monkeypatch.context() as changed:
        changed.setattr(cupy.cuda, "nvrtc", mock.MagicMock(getVersion=lambda: (99, 1)))
        assert cubins._key(COPY, "sm_90") not in {f.stem[-32:] for f in folder.iterdir()}


@pytest.mark.parametrize(
    "damage",
    [lambda x: b"", lambda x: x[:-1], lambda x: x[:-1] + b"?", lambda x: b"?" + x[1:]],
    ids=["empty", "cut", "last byte", "first byte"],
)
def test_a_damaged_file_is_compiled_again_and_mended(folder, built, damage):
    code = cubin(COPY, "sm_90")
    (file,) = folder.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert cubin(COPY, "sm_90") == code
    assert cubin(COPY, "sm_90") == code
    assert len(built) == 2


def test_the_directory_is_this_user_s_alone(folder, built, caplog):
    cubin(COPY, "sm_90")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    folder.chmod(0o770)
    cubins._private_folder.cache_clear()
    cubin(COPY, "sm_90")
    assert len(built) == 2
    assert f"other users may write to {folder}; chmod 700 it" in caplog.text


def test_another_user_s_directory_is_not_used(folder, built, monkeypatch):
    folder.mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(cubins.os, "geteuid", lambda: os.getuid() + 1)
    cubin(COPY, "sm_90")
    assert list(folder.iterdir()) == []


def test_it_can_be_turned_off(built, monkeypatch, tmp_path):
    monkeypatch.setenv("NCCLKV_KERNEL_CACHE", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        cubin(COPY, "sm_90")
    assert len(built) == 2
    assert list(tmp_path.iterdir()) == []


def test_the_usual_place_is_the_user_s_cache_directory(monkeypatch, tmp_path):
    monkeypatch.delenv("NCCLKV_KERNEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cubins.env.kernel_cache() == f"{tmp_path}/ncclkv/kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/user")
    assert cubins.env.kernel_cache() == "/home/user/.cache/ncclkv/kernels"


def test_a_user_without_a_home_keeps_no_kernels(monkeypatch, tmp_path):
    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("NCCLKV_KERNEL_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert cubins.env.kernel_cache() == ""
    monkeypatch.setenv("NCCLKV_KERNEL_CACHE", str(tmp_path))
    assert cubins.env.kernel_cache() == str(tmp_path)


def test_what_cannot_be_written_is_compiled(folder, built, monkeypatch):
    folder.parent.mkdir()
    folder.write_text("a file in its place")
    assert cubin(COPY, "sm_90")[:4] == b"\x7fELF"
    cubins._private_folder.cache_clear()
    folder.unlink()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for call in ("replace", "fdopen"):
        with monkeypatch.context() as failing:
            failing.setattr(cubins.os, call, full)
            assert cubin(COPY, "sm_90")[:4] == b"\x7fELF"
        assert list(folder.iterdir()) == [], "what could not be finished is left"
    assert len(built) == 3


def test_an_error_of_the_compiler_leaves_no_file(folder):
    broken = dataclasses.replace(COPY, macros=COPY.macros | {"MAX_PIECES": "none_such"})
    with pytest.raises(LaunchError, match="none_such"):
        cubin(broken, "sm_90")
    assert list(folder.iterdir()) == []


def test_cupy_cuts_a_byte_of_a_cubin_and_it_is_put_back():
    code = build(COPY, "sm_90")
    assert code[-1:] == b"\0"
    assert whole(code[:-1]) == code == whole(code)
    names = int.from_bytes(code[40:48], "little")
    assert len(code) >= names + 64


def test_stores_of_a_process_share_what_is_loaded(folder, loads):
    assert DeviceKernels()._launch is DeviceKernels()._launch is launch.launch
    assert launch.load(COPY) is launch.load(COPY)
    assert [device for device, _ in loads] == [0]
    assert loads[0][1] == build(COPY, "sm_90")


def test_each_device_has_functions_of_its_own(folder, loads):
    assert launch.load(COPY) == (0, "copy")
    cupy.cuda.runtime.getDevice.return_value = 1
    assert launch.load(COPY) == (1, "copy")
    assert [device for device, _ in loads] == [0, 1]


def test_threads_load_a_kernel_once(folder, loads):
    start = threading.Barrier(4)

    def load() -> None:
        start.wait()
        launch.load(COPY)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1
