"""Variables that programs of torch read; those of ``--torch-env`` lead to the other ranks.

Rank 0 listens at ``MASTER_PORT`` of ``MASTER_ADDR``.  So the supervisor of rank 0 finds a port that
is free on its host.  The runner sends this port to all supervisors, with the name by which the user
reaches the host.  Each supervisor waits for both, and then starts its command.
"""

from __future__ import annotations

import socket

LOCAL_RANK = "LOCAL_RANK"

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def free_port() -> int:
    """Return a TCP port that no process of this host uses."""
    with socket.socket() as server:
        server.bind(("", 0))
        port: int = server.getsockname()[1]
        return port


def address(host: str, place: str, *, several: bool) -> str:
    """Return the address at which all ranks reach rank 0.

    Parameters
    ----------
    host : str
        Rank 0's host, as the host calls itself.
    place : str
        The same host as the user has named it, which reaches it for certain; may be empty.
    several : bool
        False if all ranks are on this machine, whose own name may not resolve.

    Examples
    --------
    >>> address("vm", "", several=False)
    '127.0.0.1'
    >>> address("node1.cluster", "me@10.0.0.1", several=True)
    '10.0.0.1'
    >>> address("node1", "localhost", several=True)
    'node1'
    """
    if not several:
        return "127.0.0.1"
    name = place.rpartition("@")[2]
    return host if not name or name in _LOOPBACK else name


def local_variables(rank: int | None, size: int | None) -> dict[str, str]:
    """Return the variables of a rank's place on its host; none where the place is not known."""
    if rank is None or size is None:
        return {}
    return {LOCAL_RANK: str(rank), "LOCAL_WORLD_SIZE": str(size)}


def variables(rank: int, size: int, master: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables to set for a rank, and those to set unless the user has set them.

    Parameters
    ----------
    rank, size : int
    master : str
        Address and port of rank 0, separated by a space; may be empty.
    """
    settings = {"RANK": str(rank), "WORLD_SIZE": str(size)}
    return settings, dict(zip(("MASTER_ADDR", "MASTER_PORT"), master.split(), strict=False))
