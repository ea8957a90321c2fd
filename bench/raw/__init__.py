"""The communicator's collectives by themselves, as nccl-tests measures NCCL's."""

from __future__ import annotations

from bench.raw.allgather import Allgather
from bench.raw.allreduce import Allreduce
from bench.raw.broadcast import Broadcast
from bench.raw.collective import Collective
from bench.raw.reduce_scatter import ReduceScatter

COLLECTIVES: tuple[Collective, ...] = (Allreduce(), Broadcast(), ReduceScatter(), Allgather())
