"""torch modules trained by data parallelism over a store; its first use imports torch.

>>> import torch, ncclkv
>>> model = ncclkv.torch.DataParallel(torch.nn.Linear(2, 1), "local")
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
>>> model(torch.ones(4, 2)).sum().backward()    # .grad is averaged over the ranks
>>> optimizer.step()
>>> model.close()
"""

from pathlib import Path
from sys import modules
from typing import TYPE_CHECKING

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "ncclkv.torch needs torch, which is not installed here; type: pip install torch",
        name="torch",
    ) from None

from ncclkv.frames import skip_frames
from ncclkv.other_names import OF_TORCH, missing
from ncclkv.torch.data_parallel import DataParallel

__all__ = ["DataParallel"]

if not TYPE_CHECKING:  # a type checker would take any name for an attribute

    def __getattr__(name):
        """Refuse a name; the error has advice for names of torch's own."""
        raise missing(f"module {__name__!r}", name, OF_TORCH, modules[__name__])


# torch calls the hooks of gradients: an error names the program's line, such as loss.backward().
skip_frames(str(Path(torch.__file__).parent))
