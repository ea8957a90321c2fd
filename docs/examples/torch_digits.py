"""Train a torch network on handwritten digits, by ncclkv's DataParallel or by torch's own.

::

    mpirun -n 4 python docs/examples/torch_digits.py --plot losses.png
    mpirun -n 4 python docs/examples/torch_digits.py --ddp

Both commands print the same losses, except for rounding.  The first uses
`ncclkv.torch.DataParallel`, and the second torch's DistributedDataParallel (DDP) over Gloo.  Each
rank trains on its own part of every batch, and tests on its own part of the test images.  Needs the
extras ``torch`` and ``train``; ``--plot`` needs ``plot``.
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy

import ncclkv.torch

TRAIN_IMAGES = 1500  # of 1797; the other images are the test
BATCH = 16  # images of a rank in a step


class WithNcclkv:
    """A network that all ranks train by ncclkv.

    Attributes
    ----------
    model : torch.nn.Module
    rank, ranks : int
        This rank, and the number of ranks.
    """

    def __init__(self, network: nn.Module) -> None:
        self.model = ncclkv.torch.DataParallel(network)
        self.rank, self.ranks = self.model.kvstore.rank, self.model.kvstore.num_workers

    def sums(self, numbers: list[float]) -> list[float]:
        """Return the sum of each number over all ranks."""
        return self.model.kvstore.allreduce(numbers)

    def close(self) -> None:
        self.model.close()


class WithDdp:
    """A network that all ranks train by torch's DDP over Gloo; the ranks are on one machine."""

    def __init__(self, network: nn.Module) -> None:
        from mpi4py import MPI

        self.world = MPI.COMM_WORLD
        self.rank, self.ranks = self.world.rank, self.world.size
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store, port = None, 0  # rank 0 listens at a free port: another job may use a fixed one
        if self.rank == 0:
            store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            port = store.port
        port = self.world.bcast(port)
        store = store or distributed.TCPStore("127.0.0.1", port)
        distributed.init_process_group("gloo", store=store, rank=self.rank, world_size=self.ranks)
        self.model = nn.parallel.DistributedDataParallel(network)

    def sums(self, numbers: list[float]) -> list[float]:
        """Return the sum of each number over all ranks."""
        # By MPI: Gloo's threads may hold tensors until Python exits, and then abort the process.
        return [self.world.allreduce(number) for number in numbers]

    def close(self) -> None:
        distributed.destroy_process_group()


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.description = "Train a torch network on handwritten digits by data parallelism."
    option = parser.add_argument
    option("--epochs", type=int, default=10, help="passes over the training images")
    option("--dtype", default="float32", choices=["float32", "float64"], help="of the network")
    option("--lr", type=float, default=0.05, help="learning rate of SGD")
    option("--ddp", action="store_true", help="train by torch's DDP over Gloo, on one machine")
    option("--plot", metavar="FILE", help="save the curves of the losses as an image")
    return parser.parse_args()


def small_network() -> nn.Module:
    """Return a network for images of 8 x 8 pixels."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * 4 * 4, 10)),
    )


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images, whose pixels are from 0 to 1, and labels, in random order."""
    from sklearn.datasets import load_digits  # slow to import: --help needs no digits

    images, labels = map(torch.as_tensor, load_digits(return_X_y=True))
    images = (images / 16).to(torch.get_default_dtype()).view(-1, 1, 8, 8)
    order = torch.randperm(len(labels))  # equal on every rank, because the seed is
    return images[order], labels[order]


def train(job: WithNcclkv | WithDdp, epochs: int, lr: float) -> list[tuple[float, float, float]]:
    """Return the training loss, the test loss and the test accuracy of each epoch."""
    from tqdm import trange

    images, labels = digits()
    my_tests = torch.arange(TRAIN_IMAGES, len(labels))[job.rank :: job.ranks]
    tests, batch = len(labels) - TRAIN_IMAGES, BATCH * job.ranks
    steps = TRAIN_IMAGES // batch
    optimizer = torch.optim.SGD(job.model.parameters(), lr=lr, momentum=0.9)
    history = []
    for _ in (bar := trange(epochs, unit="epoch", disable=job.rank != 0, ncols=80)):
        job.model.train()
        train_loss = 0.0
        for everyones in torch.randperm(TRAIN_IMAGES)[: steps * batch].split(batch):
            mine = everyones[job.rank :: job.ranks]
            optimizer.zero_grad()
            loss = cross_entropy(job.model(images[mine]), labels[mine])
            loss.backward()  # .grad is now the average over all ranks
            optimizer.step()
            train_loss += loss.item()
        job.model.eval()
        with torch.no_grad():
            scores = job.model(images[my_tests])  # with rank 0's statistics of BatchNorm
            test_loss = cross_entropy(scores, labels[my_tests], reduction="sum").item()
            correct = (scores.argmax(1) == labels[my_tests]).sum().item()
        train_loss, test_loss, correct = job.sums([train_loss, test_loss, correct])
        history.append((train_loss / steps / job.ranks, test_loss / tests, correct / tests))
        bar.set_postfix(loss=f"{history[-1][0]:.4f}", accuracy=f"{history[-1][2]:.1%}")
    return history


def plot(history: list[tuple[float, float, float]], file: str) -> None:
    """Save the curves of the losses."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    train_losses, test_losses, _ = zip(*history, strict=True)
    epochs = range(1, len(history) + 1)
    axes.semilogy(epochs, train_losses, label="training", marker="o")
    axes.semilogy(epochs, test_losses, label="test", marker="o")
    axes.set(xlabel="epoch", ylabel="mean cross entropy")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=150)


def main() -> None:
    """Train, print the losses of each epoch, and plot them."""
    options = parse()
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, options.dtype))
    job = (WithDdp if options.ddp else WithNcclkv)(small_network())
    history = train(job, options.epochs, options.lr)
    job.close()
    if job.rank == 0:
        for epoch, (train_loss, test_loss, accuracy) in enumerate(history, 1):
            losses = f"training loss {train_loss:.15f}, test loss {test_loss:.15f}"
            print(f"epoch {epoch}: {losses}, test accuracy {accuracy:.1%}")
        if options.plot:
            plot(history, options.plot)


if __name__ == "__main__":
    main()
