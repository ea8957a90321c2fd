"""Communicators: ranks that reduce and move buffers, and small host objects beside them."""

from ncclkv.comm.base import Communicator, Control, Work
from ncclkv.comm.host.launch import world

__all__ = ["Communicator", "Control", "Work", "world"]
