"""The recording stand-in, not NCCL: what the communicator for GPUs runs on where there is no GPU.

`RecordingBinding` takes the place of the binding to NCCL, `RecordingStreams` that of a device's
streams and memory, one pair a rank.  They record every call, hold it against what NCCL and CUDA
ask of their callers, and carry it out in host memory, so that a program that passes has made the
right calls in an order that is right on any device.  They prove nothing about NCCL itself.
"""

from tests.nccl.standin.contract import ContractBroken, Died
from tests.nccl.standin.faults import Faults
from tests.nccl.standin.log import HEADER
from tests.nccl.standin.rank import Seat, run_seats

__all__ = ["HEADER", "ContractBroken", "Died", "Faults", "Seat", "run_seats"]
