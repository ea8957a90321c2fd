"""The tests of the matrix: store and communicator cases on the layouts of ranks."""

from __future__ import annotations

from tests.mutants.mutant import Selection

STORE, COMMUNICATOR = "ranks/test_store_cases.py", "ranks/test_comm_conformance.py"

THREADS = Selection("0", "threads/test_store_cases.py")
COMM = Selection("0", "threads/test_comm_conformance.py")
COMM_NODES = Selection("0", "unit/comm/shm/test_hierarchical.py")
RANKS = Selection("0", STORE, ranks=3)
NODES = Selection("0", STORE, ranks=4, environment=("NCCLKV_RANKS_PER_NODE=2",))
PLAIN = Selection("0", STORE, ranks=3, environment=("NCCLKV_COMPILED=0",))
COMM_ON_NODES = Selection("0", COMMUNICATOR, ranks=4, environment=("NCCLKV_RANKS_PER_NODE=2",))
