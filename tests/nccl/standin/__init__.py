"""The recording stand-in, not NCCL: the communicator for GPUs runs on it without a GPU.

`RecordingBinding` replaces the binding to NCCL, and `RecordingStreams` replaces a device's streams
and memory, one pair a rank. They record every call, compare it with the rules of NCCL and CUDA, and
carry it out in host memory. So a program that passes has made correct calls, in an order that is
correct on any device. They prove nothing about NCCL itself.
"""

from tests.nccl.standin.contract import ContractBroken, Died
from tests.nccl.standin.faults import Faults
from tests.nccl.standin.log import HEADER
from tests.nccl.standin.rank import Seat, run_seats

__all__ = ["HEADER", "ContractBroken", "Died", "Faults", "Seat", "run_seats"]
