"""Hosts in the forms that users and batch systems write."""

from __future__ import annotations

import pytest

from ncclkv.cli import host_lists
from ncclkv.errors import LaunchError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:4,b:4", {"a": 4, "b": 4}),
        ("a, b", {"a": None, "b": None}),
        ("10.0.0.1:2,node-2.example:3", {"10.0.0.1": 2, "node-2.example": 3}),
        ("me@a:2", {"me@a": 2}),
        ("a:1,a:2", {"a": 3}),
        ("a,a,b,b", {"a": 2, "b": 2}),
        ("a,b,a:3,b", {"a": 4, "b": 2}),
        (",".join(f"{'n' * 50}{i}" for i in range(9)), {f"{'n' * 50}{i}": None for i in range(9)}),
    ],
)
def test_hosts_in_a_list(text, found):
    assert host_lists.parse(text) == found


@pytest.mark.parametrize(
    "text",
    ["", "a,,b", "a:0", "a:", "a:x", "a:²", "a b", "-x:2", ":4", "+n0", "4*a", "[a]:2", "[::1]4"],
)
def test_hosts_in_a_wrong_list_are_refused(text):
    with pytest.raises(LaunchError, match=r"which is no host; give NAME or NAME:RANKS"):
        host_lists.parse(text)


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("node[1-3]:2", "node[1-3]"),
        ("node[1,3]:2", "node[1,3]"),
        ("a:1,node[01-03,7],gpu2", "node[01-03,7],gpu2"),
    ],
)
def test_the_short_form_of_slurm_is_refused_with_the_command_that_expands_it(text, short, tmp_path):
    command = f"scontrol show hostnames '{short}' (inside the allocation leave out the hosts"
    with pytest.raises(LaunchError) as error:
        host_lists.parse(text)
    assert command in str(error.value)
    (tmp_path / "hosts").write_text(f"a:2\n{text}\n")
    with pytest.raises(LaunchError) as error:
        host_lists.read(tmp_path / "hosts")
    assert command in str(error.value)


def test_addresses_of_ipv6_become_names_because_no_mpirun_takes_their_colons(monkeypatch):
    names = {"fd00::1": "node1", "fd00::2": "node2"}

    def look_up(address: str) -> tuple[str, list[str], list[str]]:
        if address not in names:
            raise OSError("Unknown host")
        return names[address], [], [address]

    monkeypatch.setattr(host_lists.socket, "gethostbyaddr", look_up)
    assert host_lists.parse("[fd00::1]:4,[fd00::2],fd00::2") == {"node1": 4, "node2": 2}
    with pytest.raises(LaunchError, match=r"fd00::3 .*; add a line to /etc/hosts: fd00::3 NAME"):
        host_lists.parse("[fd00::3]:2")


def test_a_file_in_the_format_of_either_mpi(tmp_path):
    path = tmp_path / "hosts"
    path.write_text(
        "# two racks\nnode1:4\nnode2 slots=2  # small\n\nnode3\nnode4 slots = 8 max_slots = 16\n"
        "node5 max-slots=9 slots=3\nnode2 slots=1\nnode3\n"
    )
    found = {"node1": 4, "node2": 3, "node3": 2, "node4": 8, "node5": 3}
    assert host_lists.read(path) == found
    assert list(host_lists.read(path)) == list(found), "in the order of the file"


def test_a_file_of_another_editor(tmp_path):
    path = tmp_path / "hosts"
    path.write_bytes(b"\xef\xbb\xbfnode1 slots=4\r\n\r\nnode2:2\r\n")
    assert host_lists.read(path) == {"node1": 4, "node2": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# none\n", "names no host; give a line NAME slots=RANKS for each"),
        ("a\nb 3\n", r"line 2 of .*hosts has 'b 3', which is no host; give b:3"),
        ("a slots=x\n", r"has 'a:x', which is no host; give NAME or NAME:RANKS"),
        ("a:4 user=me\n", r"has 'user=me', which ncclkv run does not pass on .* ~/\.ssh/config"),
        (None, "cannot be read: .*No such file"),
    ],
)
def test_a_wrong_hostfile_is_refused(tmp_path, text, said):
    if text is not None:
        (tmp_path / "hosts").write_text(text)
    with pytest.raises(LaunchError, match=said):
        host_lists.read(tmp_path / "hosts")


def test_a_file_in_place_of_a_list_names_the_other_option(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a:1\n")
    with pytest.raises(LaunchError, match=f"--hosts {path} is a file; give --hostfile {path}"):
        host_lists.parse(str(path))


@pytest.mark.parametrize(
    ("given", "ranks", "placed"),
    [
        ({"a": 4, "b": 2}, None, (6, {"a": 4, "b": 2})),
        ({"a": 4, "b": 2}, 5, (5, {"a": 4, "b": 2})),
        ({"a": None, "b": None}, 4, (4, {"a": 2, "b": 2})),
        ({"a": None, "b": None}, 3, (3, {"a": 2, "b": 2})),
        ({"a": None, "b": None}, None, (2, {"a": 1, "b": 1})),
        ({"a": None, "b": 3}, None, (4, {"a": 1, "b": 3})),
    ],
)
def test_ranks_are_distributed_over_slots(given, ranks, placed):
    assert host_lists.place_ranks(given, ranks) == placed


def test_more_ranks_than_slots_are_refused():
    with pytest.raises(LaunchError, match="-n 7 is more than the hosts take, 6 ranks"):
        host_lists.place_ranks({"a": 4, "b": 2}, 7)
