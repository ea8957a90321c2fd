"""Time of a collective by its size, and the bucket size chosen from that time.

The model is alpha-beta, by R. W. Hockney, "The communication challenge for MPP",
Parallel Computing 20 (1994): n bytes take ``alpha + n / beta``, a latency and a transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import NamedTuple

MIB = 1024 * 1024

AUTO = "auto"
"""Value of `bucket_bytes` that requests a measurement."""

DEFAULT_BUCKET_BYTES = 25 * MIB

START_UP_SHARE = 0.05
"""Largest latency of an efficient bucket, as a fraction of its transfer time."""

_MIN, _MAX = MIB, 64 * MIB


class CostModel(NamedTuple):
    """Alpha-beta model of the time of a collective.

    Attributes
    ----------
    latency_s : float
        Alpha, 0 or more.
    bytes_per_s : float
        Beta.
    """

    latency_s: float
    bytes_per_s: float

    def seconds(self, nbytes: int) -> float:
        """Return the seconds that `nbytes` take."""
        return self.latency_s + nbytes / self.bytes_per_s

    def bucket_bytes(self) -> int:
        """Return the smallest efficient bucket size: a power of two, from 1 to 64 MiB.

        Its latency is at most `START_UP_SHARE` of its transfer time, unless 64 MiB are too few.
        """
        wanted = self.latency_s * self.bytes_per_s / START_UP_SHARE
        size = _MIN
        while size < min(wanted, _MAX):
            size *= 2
        return size


def fit(points: Sequence[tuple[int, float]]) -> CostModel | None:
    """Fit a model to measurements, by least squares of the *relative* errors.

    Absolute errors are dominated by the largest size, and would leave the latency undetermined.

    Parameters
    ----------
    points : sequence of (int, float)
        Bytes and seconds, both above 0.

    Returns
    -------
    CostModel or None
        None when the seconds do not grow with the bytes: any size is as good as another.
    """
    # The sums of the normal equations of  a * (1 / t) + b * (n / t) = 1,  with b for 1 / beta.
    aa = fsum(1 / t**2 for _, t in points)
    ab = fsum(n / t**2 for n, t in points)
    bb = fsum((n / t) ** 2 for n, t in points)
    a, b = fsum(1 / t for _, t in points), fsum(n / t for n, t in points)
    determinant = aa * bb - ab * ab
    if determinant <= 0 or aa * b <= ab * a:
        return None
    latency = (a * bb - b * ab) / determinant
    if latency <= 0:
        return CostModel(0.0, bb / b)
    return CostModel(latency, determinant / (aa * b - ab * a))


class Sizing(NamedTuple):
    """Bucket size, and the model that chose it.

    Attributes
    ----------
    bucket_bytes : int
        Largest size of a bucket of several keys.
    cost : CostModel or None
        The model, when the size was measured.
    """

    bucket_bytes: int
    cost: CostModel | None = None

    def __str__(self) -> str:
        if self.cost is None:
            return (
                f"bucket_bytes={self.bucket_bytes}; no prediction: create the "
                f"store with bucket_bytes={AUTO!r} on two or more ranks to measure one"
            )
        a_mib = self.cost.seconds(MIB) - self.cost.latency_s
        return (
            f"bucket_bytes={self.bucket_bytes} and predictions are by measurement: a collective "
            f"takes {self.cost.latency_s * 1e3:.3f} ms and {a_mib * 1e3:.3f} ms a MiB"
        )
