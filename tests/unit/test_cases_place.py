"""How near two sums must be where a communicator does not promise the order of its sums."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.cases.place import near

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_order_is_near_and_another_number_is_not(dtype: type) -> None:
    parts = np.random.default_rng(3).standard_normal((4, 5000)).astype(dtype)
    forward, backward = parts[0], parts[3]
    for rank in (1, 2, 3):
        forward = (forward + parts[rank]).astype(dtype)
        backward = (backward + parts[3 - rank]).astype(dtype)
    assert forward.tobytes() != backward.tobytes()
    assert near(forward, backward, 4)
    assert not near(forward, (backward + 1).astype(dtype), 4)
    assert not near((forward - parts[0]).astype(dtype), forward, 4)


def test_whole_numbers_are_equal_or_not() -> None:
    one = np.arange(5, dtype=np.int32)
    assert near(one, one.copy(), 4)
    assert not near(one, one + 1, 4)
