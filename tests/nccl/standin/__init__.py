"""The recording stand-in, not NCCL: the communicator for GPUs runs on it without a GPU.

`RecordingBinding` replaces the binding to NCCL, and `RecordingStreams` replaces a device's streams
and memory, one pair a rank. They record every call, compare it with the rules of NCCL and CUDA, and
carry it out in host memory. So a program that passes has made correct calls, in an order that is
correct on any device. They prove nothing about NCCL itself.
"""

from tests.nccl.standin.errors import Died, RefusedByStandIn
from tests.nccl.standin.faults import Faults
from tests.nccl.standin.log import HEADER
from tests.nccl.standin.worker import Worker, run_on_standin

__all__ = ["HEADER", "RefusedByStandIn", "Died", "Faults", "Worker", "run_on_standin"]
