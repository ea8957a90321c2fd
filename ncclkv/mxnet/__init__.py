"""MXNet's Gluon and Module on an ncclkv store; importing this package imports MXNet 1.x.

``kvstore="ncclkv"`` then names a store of all ranks in ``gluon.Trainer``, ``Module.fit`` and
``mx.kv.create``.  `create` makes a store with options, for the same argument.

>>> import mxnet as mx
>>> import ncclkv.mxnet
>>> kv = mx.kv.create("ncclkv")
>>> kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5))
>>> weights = mx.nd.ones((2,))
>>> kv.init("w", weights)
>>> kv.pushpull("w", mx.nd.ones((2,)), out=weights)
>>> weights.asnumpy()
array([0.5, 0.5], dtype=float32)
>>> kv.close()
"""

from pathlib import Path

try:
    import mxnet
except (ImportError, AttributeError, OSError) as error:
    # AttributeError: names that NumPy 1.24 has removed; OSError: libquadmath.so.0 is missing.
    raise ImportError(
        f"ncclkv.mxnet: MXNet cannot be imported ({type(error).__name__}: {error}); in an "
        f"environment of Python 3.10 or 3.11 type: pip install 'ncclkv[mxnet]' (MXNet 1.9 and "
        f"NumPy below 1.24; Debian has libquadmath.so.0 in libquadmath0)"
    ) from error

from ncclkv.frames import skip_frames
from ncclkv.mxnet.names import install
from ncclkv.mxnet.store import NCCLKV, create

__all__ = ["NCCLKV", "create"]

# Gluon and Module call the store: an error names the program's line, such as trainer.step(32).
skip_frames(str(Path(mxnet.__file__).parent))
install()
