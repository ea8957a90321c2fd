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

`create` makes a store.  ``help(ncclkv.KVStore)`` describes its verbs:

====================================  ==========================================================
``init``, ``reset``, ``broadcast``    set keys to rank 0's value, for the first time or again
``push``, ``pull``, ``pushpull``      sum over ranks into the store, copy values out, or both
``allreduce``, ``allgather``          reduce or gather arrays and numbers that have no key
``broadcast_object``,                 send Python objects of one rank to all, or of all to all
``allgather_object``
``group``, ``uneven``, ``capture``    blocks: one flush; uneven numbers of batches; a CUDA graph
``overlap``                           a block of pushes from any thread, reduced meanwhile
``wait``, ``barrier``, ``close``      complete all pushes; wait for all ranks; end the store
``set_optimizer``, ``set_updater``    choose how a sum changes the value
``set_gradient_compression``          send gradients in fewer bits
``save``, ``load``                    write and read a checkpoint
``value``, ``grad_view``              views of the store's own arrays, without a copy
``keys``, ``spec``, ``explain_plan``  keys, their shapes and dtypes, and their buckets
``add_instrument``, ``metrics``,      call an `Instrument` at each verb, collective and wait, or no
``remove_instrument``                 more; count bytes and waits, and name late ranks
``trace``, ``stop_traces``            write a timeline to a file, for Perfetto
====================================  ==========================================================

`Trainer` updates the parameters of a model from gradients of all ranks, as MXNet's Gluon does.
``ncclkv.torch.DataParallel`` averages the gradients of a torch module, as torch's DDP does.
``ncclkv.mxnet`` lets MXNet's own Gluon and Module train on a store.
"""

import typing as _typing
from importlib import import_module as _import_module
from sys import modules as _modules

from ncclkv import errors
from ncclkv.errors import KVStoreError
from ncclkv.other_names import OF_PACKAGE as _ADVICE
from ncclkv.other_names import missing as _missing
from ncclkv.system import abort

if _typing.TYPE_CHECKING:
    from ncclkv import comm, observe, optimizer, testing, typing
    from ncclkv import torch as torch  # not in __all__, by which a star would import torch
    from ncclkv.comm import Communicator, Work
    from ncclkv.engine.instrument import Instrument
    from ncclkv.store.create import create
    from ncclkv.store.kvstore import KVStore
    from ncclkv.store.plugin import KVStoreBase
    from ncclkv.trainer.trainer import Trainer

__version__ = "0.1.0"

__all__ = [
    "Communicator",
    "Instrument",
    "KVStore",
    "KVStoreBase",
    "KVStoreError",
    "Trainer",
    "Work",
    "comm",
    "create",
    "errors",
    "observe",
    "optimizer",
    "testing",
    "typing",
]


_LATER = {
    "Communicator": "ncclkv.comm.base",
    "Instrument": "ncclkv.engine.instrument",
    "KVStore": "ncclkv.store.kvstore",
    "KVStoreBase": "ncclkv.store.plugin",
    "Trainer": "ncclkv.trainer.trainer",
    "Work": "ncclkv.comm.types",
    "comm": "ncclkv.comm",
    "create": "ncclkv.store.create",
    "mxnet": "ncclkv.mxnet",
    "observe": "ncclkv.observe",
    "optimizer": "ncclkv.optimizer",
    "testing": "ncclkv.testing",
    "torch": "ncclkv.torch",
    "typing": "ncclkv.typing",
}
"""Public names that are imported at their first use, and their modules.

Commands, and programs that only read ``__version__``, start in a third of the time without NumPy.
"""

if not _typing.TYPE_CHECKING:  # a type checker would take any name for an attribute

    def __getattr__(name):
        """Import a public name at its first use."""
        if name not in _LATER:
            raise _missing(f"module {__name__!r}", name, _ADVICE, _modules[__name__])
        module = _import_module(_LATER[name])
        # Not by getattr alone: the module ncclkv.torch has an attribute torch, which is torch.
        is_module = module.__name__ == f"{__name__}.{name}"
        found = globals()[name] = module if is_module else getattr(module, name)
        return found


def __dir__() -> list[str]:
    """List the public names, without the modules that are internals."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


abort.install()
