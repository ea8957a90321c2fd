"""Simulate an ensemble of fields; keep its mean, its extrema over time, and its complex spectrum.

::

    mpirun -n 4 python docs/examples/ensemble.py
    mpirun -n 4 python docs/examples/ensemble.py --gpu

Each rank simulates some of the members: heat that diffuses on a periodic square, from a random
start.  The store combines all members in each step.  ``--gpu`` needs a GPU for each rank, and the
extra ``cuda12`` or ``cuda13``; it has not run on a device.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import ncclkv

MEMBERS, SIZE, STEPS = 12, 64, 50

KEYS = ["highest", "lowest", "mean", "spectrum"]


def update(key: str, input: Any, stored: Any) -> None:
    """Fold a step into the store: the extrema of all steps, and the present mean."""
    if key == "highest":
        np.maximum(stored, input, out=stored)  # of CuPy's arrays, too
    elif key == "lowest":
        np.minimum(stored, input, out=stored)
    else:
        stored[...] = input / MEMBERS


def start(xp: Any, members: range) -> Any:
    """Return the spectra of some members at the start, on the host or on a GPU."""
    fields = [np.random.default_rng([5, each]).standard_normal((SIZE, SIZE)) for each in members]
    return xp.fft.fft2(xp.asarray(np.array(fields)))


def decay(xp: Any) -> Any:
    """Return the factor of each wave in a step of diffusion."""
    waves = np.fft.fftfreq(SIZE, 1 / SIZE)
    return xp.asarray(np.exp(-2e-3 * (waves[:, None] ** 2 + waves**2)))


def simulate(kv: ncclkv.KVStore, xp: Any) -> list[Any]:
    """Return the four results, the same on all ranks."""
    spectra = start(xp, range(kv.rank, MEMBERS, kv.num_workers))
    factor = decay(xp)
    field = np.zeros((SIZE, SIZE))
    kv.init("highest", field - np.inf, op="max")
    kv.init("lowest", field + np.inf, op="min")
    kv.init(["mean", "spectrum"], [field, field.astype(complex)])
    kv.set_updater(update)
    for _ in range(STEPS):
        spectra *= factor
        fields = xp.fft.ifft2(spectra).real
        found = [fields.max(axis=0), fields.min(axis=0), fields.sum(axis=0), spectra.sum(axis=0)]
        kv.push(KEYS, found)
    return kv.pull(KEYS)


def agree(results: list[Any]) -> bool:
    """Return whether the results are those of one process that has all members."""
    highest, lowest, mean, spectrum = results
    spectra, factor = start(np, range(MEMBERS)), decay(np)
    most, least = np.full((SIZE, SIZE), -np.inf), np.full((SIZE, SIZE), np.inf)
    for _ in range(STEPS):
        spectra *= factor
        fields = np.fft.ifft2(spectra).real
        np.maximum(most, fields.max(axis=0), out=most)
        np.minimum(least, fields.min(axis=0), out=least)
    close = [
        np.allclose(highest, most, atol=1e-12),
        np.allclose(lowest, least, atol=1e-12),
        np.allclose(mean, fields.mean(axis=0), atol=1e-12),
        np.allclose(np.fft.ifft2(spectrum).real, mean, atol=1e-12),
    ]
    return all(close)


def main() -> None:
    """Simulate, and compare with one process on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", action="store_true", help="fields and store in GPU memory")
    xp: Any = np
    if parser.parse_args().gpu:
        import cupy as xp
    with ncclkv.create("dist_sync" if xp is np else "nccl") as kv:
        results = simulate(kv, xp)
        if xp is not np:
            results = [xp.asnumpy(each) for each in results]
        if kv.rank == 0:
            highest, lowest, mean, _ = results
            print(f"{MEMBERS} members on {kv.num_workers} rank(s), {STEPS} steps")
            print(f"extrema of all steps: {lowest.min():.4f} to {highest.max():.4f}")
            print(f"spread of the mean at the end: {mean.std():.4f}")
            print("check:", "equal to one process" if agree(results) else "FAILED")


if __name__ == "__main__":
    main()
