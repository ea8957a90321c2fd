"""Layer 0: which binding to NCCL a rank uses, and what it is told when that is not there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ncclkv import env
from ncclkv.comm.nccl import launch, nccl4py_binding
from ncclkv.comm.nccl.nccl4py_binding import Nccl4pyBinding, installed
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.errors import LaunchError


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch):
    """Make nccl4py of some version look installed, or absent for None."""

    def pretend(version: str | None) -> None:
        def find(name: str) -> str:
            assert name == "nccl4py"
            if version is None:
                raise nccl4py_binding.metadata.PackageNotFoundError(name)
            return version

        monkeypatch.setattr(nccl4py_binding.metadata, "version", find)

    return pretend


@pytest.mark.parametrize(
    ("found", "given", "chosen"),
    [
        (None, "", "cupy"),
        ("0.6.0", "", "nccl4py"),
        ("0.6.3", "cupy", "cupy"),
        ("0.5.9", "", "cupy"),
        ("0.7.0", "", "cupy"),
        ("0.60.0", "", "cupy"),
        (None, "nccl4py", "nccl4py"),
    ],
)
def test_nccl4py_is_chosen_where_it_is_installed_and_not_refused(
    monkeypatch, version, found, given, chosen
):
    version(found)
    monkeypatch.setenv("NCCLKV_NCCL_BINDING", given)
    assert launch._binding() == chosen
    assert installed() is (found is not None and found.startswith("0.6."))


def test_there_is_a_binding_of_each_name():
    assert set(launch.BINDINGS) == set(env.NCCL_BINDINGS)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "nccl4py is not installed; pip install 'ncclkv[nccl4py]'"),
        ("0.7.1", "nccl4py 0.7.1 is not of the series 0.6; pip install 'ncclkv[nccl4py]'"),
    ],
)
def test_its_absence_is_said_in_words(monkeypatch, version, found, words):
    version(found)
    with pytest.raises(LaunchError) as caught:
        Nccl4pyBinding()
    assert words in str(caught.value)
    assert "or set NCCLKV_NCCL_BINDING=cupy on every rank" in str(caught.value)
    monkeypatch.setenv("NCCLKV_NCCL_BINDING", "nccl4py")
    monkeypatch.setattr(launch, "DRIVER", "libc.so.6")
    (own,) = launch.survey(SoloCommunicator(1.0))
    assert words in own.obstacle


@pytest.mark.parametrize("module", ["cupy", "nccl.bindings"])
def test_what_cannot_be_imported_is_said_in_words(monkeypatch, version, module):
    version("0.6.0")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(LaunchError, match="nccl4py or CuPy cannot be imported"):
        Nccl4pyBinding()


def test_other_names_are_refused(monkeypatch):
    alone = SoloCommunicator(1.0)
    monkeypatch.setenv("NCCLKV_NCCL_BINDING", "torch")
    with pytest.raises(LaunchError, match="'torch' is no binding to NCCL; set cupy or nccl4py"):
        env.nccl_binding()
    (own,) = launch.survey(alone)
    assert "'torch' is no binding" in own.obstacle


def test_nothing_imports_it_before_it_is_chosen():
    code = (
        "import sys, ncclkv.comm.nccl.launch as it; it._binding(); assert 'nccl' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)
