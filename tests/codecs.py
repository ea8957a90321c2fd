"""Plain models of encoded gradients, one for each sender, and the numbers that test them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from ncclkv.compress.quantiser import Quantiser
from ncclkv.compress.registry import codec_of

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3.4e38, 0.5, -0.5, 1.0, -1.0, 5.0]


class Model(ABC):
    """The residual of one sender, and what it sends: all elements at once, in float32.

    Parameters
    ----------
    threshold : float
    count : int
    """

    bits: int

    def __init__(self, threshold: float, count: int) -> None:
        self.threshold = np.float32(threshold)
        self.residual = np.zeros(count, np.float32)

    @property
    @abstractmethod
    def step(self) -> float:
        """The unit of the values that are sent."""

    @abstractmethod
    def push(self, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Return the codes, the values that they send, and the count of large residuals."""

    def payload(self, codes: np.ndarray) -> bytes:
        """Return the codes as MXNet packs them, in whole words of 4 bytes."""
        words = -(-codes.size * self.bits // 32)
        packed = 0  # of all bits, the first the most significant
        for code in codes.tolist():
            packed = packed << self.bits | code
        return (packed << words * 32 - codes.size * self.bits).to_bytes(words * 4, "big")


class TwoBit(Model):
    bits = 2

    @property
    def step(self) -> float:
        return float(self.threshold)

    def push(self, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        threshold = self.threshold
        with np.errstate(all="ignore"):
            total = self.residual + gradients
            up, down = total >= threshold, total <= -threshold
            self.residual = np.where(
                up, total - threshold, np.where(down, total + threshold, total)
            )
            large = int((np.abs(self.residual) > threshold).sum())
        codes = np.where(up, 0b11, np.where(down, 0b10, 0b00))
        return codes, np.where(up, 1, np.where(down, -1, 0)), large


class OneBit(Model):
    bits = 1

    @property
    def step(self) -> float:
        return 1.0

    def push(self, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        with np.errstate(all="ignore"):
            total = self.residual + gradients
            up = total > self.threshold
            self.residual = np.where(up, total - np.float32(1), total + np.float32(1))
            large = int((np.abs(self.residual) > 4).sum())
        return up.astype(np.int64), np.where(up, 1, -1), large


MODELS: dict[str, type[Model]] = {"1bit": OneBit, "2bit": TwoBit}


def quantiser(name: str, threshold: float = 0.5) -> Quantiser:
    """Return a codec of few bits by its name."""
    found = codec_of({"type": name, "threshold": threshold, "scope": "rank"})
    assert isinstance(found, Quantiser)
    return found


def zeros(count: int, offset: int) -> np.ndarray:
    """Return zeros in float32, `offset` bytes behind an aligned address."""
    array: np.ndarray = np.zeros(count * 4 + offset, np.uint8)[offset:].view(np.float32)
    return array


def numbers(rng: np.random.Generator, count: int, special: bool, offset: int = 0) -> np.ndarray:
    """Return gradients of several magnitudes, at an address as of `zeros`.

    If `special` is set, some are infinite, NaN or denormal.
    """
    array = zeros(count, offset)
    array[...] = rng.standard_normal(count) * rng.choice([0.01, 0.3, 1, 3])
    if special:
        array[...] = np.where(rng.random(count) < 0.3, rng.choice(SPECIAL, count), array)
    return array


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether the bits are equal; all NaNs count as equal."""
    is_nan = np.isnan(expected)
    if not np.array_equal(np.isnan(found), is_nan):
        return False
    return bool(found[~is_nan].tobytes() == expected[~is_nan].tobytes())


def total_of(sent: Sequence[np.ndarray], step: float) -> np.ndarray:
    """Return the sum of values in units of `step`, rounded once to float32."""
    return (np.sum(sent, axis=0) * np.float64(np.float32(step))).astype(np.float32)
