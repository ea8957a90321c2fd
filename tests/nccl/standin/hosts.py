"""Host communicators in which the stand-in moves data between the ranks."""

from __future__ import annotations

from ncclkv.comm.base import Communicator
from ncclkv.comm.host.communicator import HostCommunicator


def twin(host: Communicator, limit: float) -> Communicator:
    """Return a communicator of the same ranks; all of them have just exchanged messages.

    The ranks share no memory: the agreement on shared memory takes as long as a whole test.
    """
    if not isinstance(host, HostCommunicator):  # of one rank
        return host.duplicate(limit)
    return HostCommunicator(host._transport.split(0, host.rank), limit)
