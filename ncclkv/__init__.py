"""A key-value store for data-parallel training and scientific computing.

``push`` sums a key over all ranks, an updater folds the sum into the stored value, ``pull`` returns
it.  The verbs and numbers are those of MXNet's KVStore.

>>> import numpy as np
>>> import ncclkv
>>> kv = ncclkv.create("local")
>>> kv.init("w", np.ones((2, 3), np.float32))
>>> kv.push("w", np.full((2, 3), 8, np.float32))
>>> kv.pull("w")
array([[8., 8., 8.],
       [8., 8., 8.]], dtype=float32)
>>> kv.close()
"""

from ncclkv import abort, comm, errors, optimizer, testing
from ncclkv.comm import Communicator, Work
from ncclkv.errors import KVStoreError
from ncclkv.store.create import create
from ncclkv.store.kvstore import KVStore
from ncclkv.store.plugin import KVStoreBase

__version__ = "0.1.0"

__all__ = [
    "Communicator",
    "KVStore",
    "KVStoreBase",
    "KVStoreError",
    "Work",
    "comm",
    "create",
    "errors",
    "optimizer",
    "testing",
]

abort.install()
