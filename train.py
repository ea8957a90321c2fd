"""Train a small network on handwritten digits, each rank on its own part of every batch.

::

    mpirun -n 4 python train.py
    launch/local.sh -n 4 train.py --optimizer adam --schedule cosine --update-on sharded
    launch/local.sh -n 4 train.py --epochs 50 --update-on root --checkpoint checkpoints --resume

The network is plain NumPy.  In each step a rank computes the gradients of its images.  A trainer
sums the gradients over all ranks in the store, which updates the weights.  Exits with 1 when the
accuracy is too low for a right sum, or when the weights differ between ranks.  Needs the extra
``train``: scikit-learn, which ships the digits, and tqdm.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ncclkv
from ncclkv import env
from ncclkv.optimizer import CosineScheduler, FactorScheduler, MultiFactorScheduler, PolyScheduler

Array = NDArray[Any]
Options = argparse.Namespace

KEYS = ["hidden.weight", "hidden.bias", "output.weight", "output.bias"]
SHAPES = [(64, 128), (128,), (128, 10), (10,)]
TRAIN_IMAGES = 1500  # of 1797; the other images are the test
LOWEST_ACCURACY = 0.95

ARGUMENTS = {name: {"learning_rate": 0.1, "momentum": 0.9} for name in ("sgd", "nag")}
"""Arguments of optimizers that need other numbers than their defaults here."""

SCHEDULES = {
    "constant": None,
    "factor": lambda steps, rate: FactorScheduler(max(1, steps // 4), factor=0.5, base_lr=rate),
    "multifactor": lambda steps, rate: MultiFactorScheduler(
        [1 + steps // 2, 2 + 3 * steps // 4], factor=0.1, base_lr=rate
    ),
    "poly": lambda steps, rate: PolyScheduler(max(1, steps), base_lr=rate),
    "cosine": lambda steps, rate: CosineScheduler(max(1, steps), base_lr=rate),
}
"""Learning rates, from the number of steps and the first rate."""


def parse(argv: list[str] | None = None) -> Options:
    """Parse the command line, or `argv` if it is given."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.description = "Train a small network on handwritten digits through a key-value store."
    option = parser.add_argument
    option("--kvstore", default="dist", help="name of the store")
    option(
        "--update-on",
        default="every_rank",
        choices=["every_rank", "root", "sharded"],
        help="where the optimizer runs",
    )
    option("--optimizer", default="sgd", help="name of the optimizer")
    option(
        "--lr",
        type=float,
        help="learning rate; None: 0.1 for sgd and nag, else the optimizer's default",
    )
    option("--schedule", default="constant", choices=list(SCHEDULES), help="learning rate by step")
    option("--epochs", type=int, default=30, help="passes over the training images")
    option("--batch-size", type=int, default=64, help="images in a step, over all ranks")
    option("--seed", type=int, default=0, help="seed of the split, the first weights and the order")
    option(
        "--checkpoint",
        metavar="DIR",
        default=env.checkpoint(),
        help="directory for a checkpoint every epoch",
    )
    option("--resume", action="store_true", help="resume the newest checkpoint, if any")
    options = parser.parse_args(argv)
    options.resume |= bool(options.checkpoint) and env.restarts() > 0
    for name, least in (("epochs", 0), ("batch-size", 1), ("seed", 0)):
        if (given := getattr(options, name.replace("-", "_"))) < least:
            parser.error(f"--{name} {given}: give at least {least}")
    return options


def digits(rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
    """Return training images and labels, then test ones; an image has 64 numbers from 0 to 1."""
    try:
        from sklearn.datasets import load_digits  # slow to import: --help needs no digits
    except ImportError as error:
        sys.exit(f"train.py needs the extra `train` ({error}): pip install 'ncclkv[train]'")

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    order = rng.permutation(len(labels))
    first, rest = order[:TRAIN_IMAGES], order[TRAIN_IMAGES:]
    return images[first], labels[first], images[rest], labels[rest]


def first_weights(rng: np.random.Generator) -> list[Array]:
    """Return matrices of variance 2 / inputs (He et al., 2015) and zero biases, in KEYS' order."""
    weights: list[Array] = [np.zeros(shape, np.float32) for shape in SHAPES]
    for matrix in weights[0], weights[2]:
        matrix[:] = rng.normal(0, np.sqrt(2 / len(matrix)), matrix.shape)
    return weights


def forward(weights: list[Array], images: Array) -> tuple[Array, Array]:
    """Return the hidden layer and the scores of the ten digits, a row for each image."""
    hidden = np.maximum(images @ weights[0] + weights[1], 0)
    return hidden, hidden @ weights[2] + weights[3]


def gradients(weights: list[Array], images: Array, labels: Array) -> list[Array]:
    """Return gradients of the cross entropy, summed over the images, in KEYS' order."""
    hidden, scores = forward(weights, images)
    error = np.exp(scores - scores.max(axis=1, keepdims=True))
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    back = error @ weights[2].T * (hidden > 0)
    return [images.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)]


def optimizer(options: Options) -> ncclkv.optimizer.Optimizer:
    """Return the optimizer, whose learning rate may follow a schedule over all steps."""
    arguments = dict(ARGUMENTS.get(options.optimizer.lower(), {}))
    if options.lr is not None:
        arguments["learning_rate"] = options.lr
    made = ncclkv.optimizer.create(options.optimizer, **arguments)
    if (schedule := SCHEDULES[options.schedule]) is not None:
        steps = options.epochs * -(-TRAIN_IMAGES // options.batch_size)
        made.lr_scheduler = schedule(steps, made.learning_rate)
    return made


def train(
    kv: ncclkv.KVStore, options: Options, rng: np.random.Generator, images: Array, labels: Array
) -> tuple[list[Array], float]:
    """Train; return this rank's weights, and the images a second of all ranks."""
    from tqdm import trange

    weights = first_weights(rng)
    trainer = ncclkv.Trainer(zip(KEYS, weights, strict=True), optimizer(options), kvstore=kv)
    done = 0
    if options.resume and (loaded := kv.load(options.checkpoint, required=False)):
        done, rng.bit_generator.state = loaded.step, loaded.extra
        kv.pull(KEYS, out=weights)
    begin = time.perf_counter()
    bar = {"unit": "epoch", "disable": kv.rank != 0, "mininterval": 0.5, "ncols": 80}
    for epoch in trange(done, options.epochs, **bar):
        order = rng.permutation(len(labels))  # equal on every rank, because the seed is
        for start in range(0, len(order), options.batch_size):
            mine = order[start : start + options.batch_size][kv.rank :: kv.num_workers]
            found = gradients(weights, images[mine], labels[mine])
            trainer.grads.update(zip(KEYS, found, strict=True))
            # The sums are over all images of a batch, whichever ranks they were on.
            trainer.step(options.batch_size)
        if options.checkpoint:
            kv.save(options.checkpoint, step=epoch + 1, extra=rng.bit_generator.state)
    return weights, (options.epochs - done) * len(labels) / (time.perf_counter() - begin)


def same_on_all_ranks(kvstore: str, weights: list[Array]) -> bool:
    """Return whether all ranks hold the same bits: then the maximum over ranks is the minimum."""
    bits = np.concatenate([array.ravel() for array in weights]).view(np.uint32)
    highest, lowest = np.empty_like(bits), np.empty_like(bits)
    with ncclkv.create(kvstore) as kv:
        kv.init("highest", bits, op="max")
        kv.init("lowest", bits, op="min")
        kv.pushpull(["highest", "lowest"], [bits, bits], out=[highest, lowest])
    return np.array_equal(highest, lowest)


def main(argv: list[str] | None = None) -> int:
    """Train, test and report; return the exit status."""
    options = parse(argv)
    rng = np.random.default_rng(options.seed)
    images, labels, test_images, test_labels = digits(rng)
    with ncclkv.create(options.kvstore, update_on=options.update_on) as kv:
        weights, speed = train(kv, options, rng, images, labels)
        same = same_on_all_ranks(options.kvstore, weights)
        accuracy = np.mean(forward(weights, test_images)[1].argmax(axis=1) == test_labels)
        if kv.rank == 0:
            print(f"test accuracy: {accuracy:.2%}")
            if accuracy < LOWEST_ACCURACY:
                print(f"failed: the accuracy is below {LOWEST_ACCURACY:.0%}; give more --epochs")
            print(f"speed: {speed:,.0f} examples a second on {kv.num_workers} rank(s)")
            print("weights:", "bit-identical on all ranks" if same else "DIFFERENT between ranks")
    return 0 if same and accuracy >= LOWEST_ACCURACY else 1


if __name__ == "__main__":
    sys.exit(main())
