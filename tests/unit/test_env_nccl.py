"""Environment variables of NCCL, and settings that are set for a short time."""

from __future__ import annotations

import os

import pytest

from ncclkv import env


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables that are set outside."""
    for name in [name for name in os.environ if name.startswith(("NCCL_", "NCCLKV_SHARE"))]:
        monkeypatch.delenv(name)


def nccls() -> dict[str, str]:
    """Return the variables of NCCL that are set."""
    return {name: text for name, text in os.environ.items() if name.startswith("NCCL_")}


def test_the_environment_allows_shared_gpus(monkeypatch):
    assert not env.share_gpu()
    for text, shares in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("NCCLKV_SHARE_GPU", text)
        assert env.share_gpu() is shares


def test_settings_of_the_user_stay(monkeypatch):
    monkeypatch.setenv("NCCL_NET", "IB")
    with env.temporarily({"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}):
        assert nccls() == {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}
    assert nccls() == {"NCCL_NET": "IB"}


def test_settings_end_with_the_last_block_that_has_them():
    one, other = (env.temporarily({"NCCL_IB_DISABLE": "1"}) for _ in range(2))
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert nccls() == {"NCCL_IB_DISABLE": "1"}
    other.__exit__(None, None, None)
    assert nccls() == {}
