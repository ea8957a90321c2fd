"""What a communicator says when it is used after its end."""

from __future__ import annotations


def left(rank: int, size: int, reason: str) -> str:
    """What a communicator says after `abort`."""
    return (
        f"rank {rank} of {size}: this rank has left the communicator, and said: {reason}; make a "
        f"new one"
    )


def closed(rank: int, size: int) -> str:
    """What a communicator says after `close`."""
    return f"rank {rank} of {size}: the communicator is closed; make a new one"
