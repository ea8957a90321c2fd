"""Communicators: ranks that reduce and move buffers, and small host objects beside them."""

from ncclkv.comm.base import Communicator
from ncclkv.comm.control import ObjectComm
from ncclkv.comm.host.launch import world
from ncclkv.comm.types import Work

__all__ = ["Communicator", "ObjectComm", "Work", "world"]
