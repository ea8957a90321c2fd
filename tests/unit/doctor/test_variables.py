"""Rows of variables: their texts, and launchers that ncclkv cannot join."""

from __future__ import annotations

import os

import pytest

from ncclkv.doctor import variables
from ncclkv.doctor.rows import OK


def test_long_values_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("UCX_TLS", "x" * 100)
    for number in range(8):
        monkeypatch.setenv(f"NCCL_{number}", "1")
    row = {row.thing: row for row in variables.rows()}["other settings"]
    assert row.found.endswith("NCCL_5=1, 3 more")
    monkeypatch.undo()
    monkeypatch.setenv("UCX_TLS", "x" * 100)
    row = {row.thing: row for row in variables.rows()}["other settings"]
    assert f"UCX_TLS={'x' * 40}..." in row.found


def test_a_store_for_each_process_on_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"WORLD_SIZE": "2", "RANK": "0", "NCCLKV_ALONE": "1"}.items():
        monkeypatch.setenv(name, text)
    row = next(variables.rows())
    assert (row.thing, row.level) == ("launcher", OK)
    assert row.used == "a store for each process: NCCLKV_ALONE=1"
