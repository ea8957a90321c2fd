"""Helpers of the cases: arrays, sums over ranks, equality, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conformance.capabilities import current_buffers

SHAPE = (2, 3)


def full(value: Any, shape: tuple[int, ...] = SHAPE, dtype: Any = np.float32) -> NDArray[Any]:
    """Return an array of one value, float32 as MXNet makes them."""
    return np.full(shape, value, dtype)


def total(kv: Any) -> int:
    """Return the sum of rank + 1 over the ranks of `kv`."""
    return kv.num_workers * (kv.num_workers + 1) // 2


def same(got: Any, expected: Any) -> None:
    """Fail unless `got` equals `expected`, a scalar or an array of any memory, in every bit."""
    got = np.asarray(current_buffers().get(got))
    if hasattr(expected, "get"):  # of a device: CuPy refuses np.asarray
        expected = current_buffers().get(expected)
    np.testing.assert_array_equal(got, np.asarray(expected).astype(got.dtype))


def pulled(kv: Any, key: Any, like: NDArray[Any] | None = None) -> NDArray[Any]:
    """Pull `key` into a new array full of another value."""
    out = full(-77) if like is None else np.full(like.shape, 77).astype(like.dtype)
    kv.pull(key, out=out)
    return out


@contextmanager
def refused(kv: Any, error: type[BaseException], *words: str) -> Iterator[None]:
    """Expect `error`, with every one of `words` and the rank in its message."""
    with pytest.raises(error) as caught:
        yield
    check_words(caught.value, *words, f"rank {kv.rank}")


def check_words(error: BaseException, *words: str) -> None:
    """Fail unless the text of `error`, with its notes, has every one of `words`."""
    text = "\n".join([str(error), *getattr(error, "__notes__", [])])
    missing = [word for word in words if word not in text]
    assert not missing, f"{type(error).__name__} lacks {missing} in its text: {text}"


def probed(create: Any, **options: Any) -> Any:
    """Return a store with keys 3 and 5 (float32, `SHAPE`) that hold 2 and 4."""
    kv = create(**options)
    kv.init([3, 5], [full(2), full(4)])
    return kv


def intact(kv: Any, three: float = 2, five: float = 4) -> None:
    """Fail unless a `probed` store still has its values, and still sums and returns them."""
    assert list(kv.keys()) == [3, 5]
    same(pulled(kv, 3), three)
    same(pulled(kv, 5), five)
    kv.push([3, 5], [full(kv.rank + 1), full(10 * (kv.rank + 1))])
    same(pulled(kv, 3), total(kv))
    same(pulled(kv, 5), 10 * total(kv))
