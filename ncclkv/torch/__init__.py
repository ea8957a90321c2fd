"""torch modules trained by data parallelism over a store; importing this package imports torch.

>>> import torch
>>> import ncclkv.torch
>>> model = ncclkv.torch.DataParallel(torch.nn.Linear(2, 1), "local")
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
>>> model(torch.ones(4, 2)).sum().backward()    # .grad is averaged over the ranks
>>> optimizer.step()
>>> model.close()
"""

from pathlib import Path

import torch

from ncclkv.comm.diagnosis.call_log import skip_frames
from ncclkv.torch.data_parallel import DataParallel

__all__ = ["DataParallel"]

# torch calls the hooks of gradients: an error names the program's line, such as loss.backward().
skip_frames(str(Path(torch.__file__).parent))
