"""``python -m bench.digits``: the accuracy of train.py's network with compressed gradients.

Ranks are threads of this process: the results are those of any ranks.  An accuracy is the mean of
several seeds, which choose the split, the first weights and the order of the images.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import ncclkv
import train

RANKS, EPOCHS, SEEDS, BATCH = 4, 15, 5, 64

CODECS: tuple[Mapping[str, Any] | None, ...] = (
    None,
    {"type": "fp16"},
    {"type": "bf16"},
    {"type": "1bit", "threshold": 0.0},
    {"type": "2bit", "threshold": 2.0},
    {"type": "2bit", "threshold": 0.5},
    {"type": "topk", "ratio": 0.01},
    {"type": "powersgd", "rank": 1},
    {"type": "powersgd", "rank": 2},
    {"type": "powersgd", "rank": 4},
)


def accuracies(codec: Mapping[str, Any] | None, seed: int) -> list[float]:
    """Return the share of test images that the network names rightly, after each epoch."""

    def work() -> list[float]:
        found = []
        rng = np.random.default_rng(seed)
        images, labels, test_images, test_labels = train.digits(rng)
        with ncclkv.create("threads") as kv:
            weights = train.first_weights(rng)
            sgd = ncclkv.optimizer.SGD(**train.ARGUMENTS["sgd"])
            pairs = zip(train.KEYS, weights, strict=True)
            trainer = ncclkv.Trainer(pairs, sgd, kvstore=kv, compression_params=codec)
            for _ in range(EPOCHS):
                order = rng.permutation(len(labels))
                for start in range(0, len(order), BATCH):
                    mine = order[start : start + BATCH][kv.rank :: kv.num_workers]
                    gradients = train.gradients(weights, images[mine], labels[mine])
                    trainer.grads.update(zip(train.KEYS, gradients, strict=True))
                    trainer.step(BATCH)
                right = train.forward(weights, test_images)[1].argmax(axis=1) == test_labels
                found.append(float(np.mean(right)))
        return found

    curve: list[float] = ncclkv.testing.run_ranks(RANKS, work)[0]
    return curve


def name_of(codec: Mapping[str, Any] | None) -> str:
    """Return the name of a codec with its parameters."""
    return "float32" if codec is None else " ".join(map(str, codec.values()))


def plot(curves: Mapping[str, Sequence[float]], path: str) -> None:
    """Draw the accuracy over the epochs of each codec."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, shares in curves.items():
        axes.plot(range(1, len(shares) + 1), shares, label=name)
    axes.set_xlabel("epoch")
    axes.set_ylabel("test accuracy (%)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=2)
    figure.savefig(path, dpi=120)


@contextmanager
def warnings_of_codecs() -> Iterator[list[str]]:
    """Collect what the package logs, in place of printing it."""
    found: list[str] = []
    log, handler = logging.getLogger("ncclkv"), logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    propagates, log.propagate = log.propagate, False
    try:
        yield found
    finally:
        log.removeHandler(handler)
        log.propagate = propagates


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each codec."""
    parser = argparse.ArgumentParser(prog="python -m bench.digits", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="number of trainings of a codec")
    parser.add_argument("--plot", metavar="FILE", help="draw the accuracies over the epochs")
    given = parser.parse_args(argv)
    seeds, curves = given.seeds, dict[str, Sequence[float]]()
    print(f"# test accuracy of {seeds} seeds after {EPOCHS} epochs, {RANKS} ranks")
    for codec in CODECS:
        with warnings_of_codecs() as found:
            every = 100 * np.array([accuracies(codec, seed) for seed in range(seeds)])
        name, shares = name_of(codec), every[:, -1]
        curves[name] = every.mean(axis=0)
        print(f"{name:<12} {np.mean(shares):6.2f} % (from {min(shares):.2f} to {max(shares):.2f})")
        for text in found[:1]:
            print(f"    {text}")
    if given.plot is not None:
        plot(curves, given.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
