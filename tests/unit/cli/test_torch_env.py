"""Variables of torch.distributed, and those of a rank's place on its host."""

from __future__ import annotations

import socket

import pytest

from ncclkv import env
from ncclkv.cli import torch_env


def test_the_port_can_be_listened_on():
    with socket.socket() as server:
        server.bind(("", torch_env.free_port()))
        server.listen()


@pytest.mark.parametrize(
    ("place", "several", "found"),
    [
        ("", False, "127.0.0.1"),
        ("", True, "vm"),
        ("localhost", True, "vm"),
        ("node1", True, "node1"),
        ("me@node1", True, "node1"),
    ],
)
def test_the_address_is_the_users_own_name_of_the_host(place, several, found):
    assert torch_env.address("vm", place, several=several) == found


def test_an_address_that_never_arrived_is_not_set():
    assert torch_env.variables(1, 4, "") == ({"RANK": "1", "WORLD_SIZE": "4"}, {})
    settings, unless_set = torch_env.variables(1, 4, "node1 29500")
    assert settings == {"RANK": "1", "WORLD_SIZE": "4"}
    assert unless_set == {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    "names",
    [
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("MV2_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
        ("MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    ],
)
def test_the_place_on_a_host_by_each_launcher(monkeypatch, names):
    for pair in env._LOCAL:
        for name in pair:
            monkeypatch.delenv(name, raising=False)
    assert env.local_place() == (None, None)
    monkeypatch.setenv(names[0], "4")
    assert env.local_place() == (None, None)
    monkeypatch.setenv(names[1], "2")
    assert env.local_place() == (4, 2)
