"""The recording stand-in, not NCCL: the communicator for GPUs runs on it without a GPU.

`RecordingBinding` replaces the binding to NCCL, and `RecordingStreams` replaces a device's streams
and memory, one pair a rank. They record every call, compare it with the rules of NCCL and CUDA, and
carry it out in host memory. So a program that passes has made correct calls, in an order that is
correct on any device. They prove nothing about NCCL itself.

``run_on_standin(2, body, world=Seeded(7))`` runs the ranks in a seeded world: each stream is a
thread whose turns the world draws (`drawn`), each rank has a watcher, and freed memory is used
again at once.
"""

from tests.nccl.standin.errors import Died, RefusedByStandIn
from tests.nccl.standin.faults import Faults
from tests.nccl.standin.log import HEADER
from tests.nccl.standin.worker import Worker, run_on_standin

__all__ = ["HEADER", "RefusedByStandIn", "Died", "Faults", "Worker", "run_on_standin"]
