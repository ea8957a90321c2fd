"""Kernels in C for encoded gradients: what they take, leave to NumPy, and refuse."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.kernels.host import compiled
from tests.codecs import MODELS

pytestmark = pytest.mark.usefixtures("in_c")

COUNT = 100
LEVELS = np.zeros((256, 4), np.uint16)
PAYLOAD, COUNTS = np.zeros(28, np.uint8), np.zeros(COUNT, np.uint16)
VALUES = np.zeros(COUNT, np.float32)


def encoded(*, name: str = "2bit", gradients: np.ndarray = VALUES, payload: int = 28) -> int:
    return compiled.encode(
        name, gradients, np.zeros(gradients.size, np.float32), np.zeros(payload, np.uint8), 0.5
    )


@pytest.mark.parametrize("name", [*MODELS])
def test_each_codec_is_in_c(name: str) -> None:
    assert encoded(name=name, payload=4 * -(-COUNT // (32 // MODELS[name].bits))) == 0


def test_all_is_done_at_any_address() -> None:
    memory = np.zeros(4 * COUNT + 1, np.uint8)
    odd, counts = memory[1:].view(np.float32), memory[1 : 2 * COUNT + 1].view(np.uint16)
    assert encoded(gradients=odd) == 0
    assert compiled.count_levels(LEVELS, [PAYLOAD], counts)
    assert compiled.scale_counts(counts, 0.0, 1.0, VALUES)
    assert compiled.pack_counts(counts, np.zeros(50, np.uint8), 4)
    assert compiled.unpack_counts(np.zeros(50, np.uint8), counts, 4)
    numbers = np.zeros(4 * COUNT + 1, np.uint8)
    assert compiled.narrow_with_rest(VALUES, numbers[1:].view(np.float32), counts)
    payload = memory[1:17]
    assert compiled.take_largest(VALUES, numbers[1:].view(np.float32), payload)
    assert compiled.add_largest(payload, numbers[1:].view(np.float32))
    product = np.zeros(4 * COUNT * COUNT + 1, np.uint8)[1:].view(np.float32)
    assert compiled.orthonormalise(numbers[1:].view(np.float32), 4)
    assert compiled.multiply(odd, odd, 1, product, None, 1.0, False)


def test_other_arrays_are_left_to_numpy() -> None:
    wide = VALUES.astype(np.float64)
    assert encoded(name="3bit") == -1
    assert encoded(gradients=wide) == -1
    assert encoded(gradients=np.zeros((COUNT, 2), np.float32)[:, 0]) == -1
    assert not compiled.count_levels(LEVELS, [PAYLOAD[::2]], COUNTS)
    assert not compiled.count_levels(LEVELS, [PAYLOAD], COUNTS.astype(np.int16))
    assert not compiled.scale_counts(COUNTS, 0.0, 1.0, wide)
    assert not compiled.pack_counts(COUNTS[::2], PAYLOAD, 4)
    assert not compiled.unpack_counts(PAYLOAD, COUNTS.astype(np.int16), 4)
    assert not compiled.narrow_with_rest(wide, VALUES, COUNTS)
    assert not compiled.narrow_with_rest(VALUES, wide, COUNTS)
    assert not compiled.narrow_with_rest(VALUES, VALUES, PAYLOAD)
    assert not compiled.take_largest(wide, VALUES, PAYLOAD[:8])
    assert not compiled.take_largest(VALUES, VALUES[::2], PAYLOAD[:8])
    assert not compiled.take_largest(VALUES, VALUES, PAYLOAD[:16:2])
    assert not compiled.add_largest(PAYLOAD[:8], wide)
    assert not compiled.add_largest(PAYLOAD[:16:2], VALUES)
    assert not compiled.orthonormalise(wide, 1)
    assert not compiled.orthonormalise(VALUES[::2], 1)
    assert not compiled.multiply(VALUES, VALUES, 10, wide, None, 1.0, False)
    assert not compiled.multiply(VALUES[::2], VALUES, 10, VALUES, None, 1.0, False)


def test_wrong_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="a payload of 24 bytes, where 28 are expected"):
        encoded(payload=24)
    with pytest.raises(ValueError, match="residuals of 396 bytes, where 400 are expected"):
        compiled.encode("2bit", VALUES, VALUES[1:], PAYLOAD, 0.5)
    with pytest.raises(ValueError, match="a payload of 24 bytes, for 100 elements"):
        compiled.count_levels(LEVELS, [PAYLOAD, PAYLOAD[4:]], COUNTS)
    with pytest.raises(ValueError, match="there are no payloads to sum"):
        compiled.count_levels(LEVELS, [], COUNTS)
    with pytest.raises(ValueError, match="a table of 1536 bytes"):
        compiled.count_levels(LEVELS[:, :3].copy(), [PAYLOAD], COUNTS)
    with pytest.raises(ValueError, match="an array for values of 396 bytes"):
        compiled.scale_counts(COUNTS, 0.0, 1.0, np.zeros(99, np.float32))
    with pytest.raises(ValueError, match="packed counts of 28 bytes, where 50 are expected"):
        compiled.pack_counts(COUNTS, PAYLOAD, 4)
    with pytest.raises(ValueError, match="counts of 3 bits"):
        compiled.unpack_counts(PAYLOAD, COUNTS, 3)
    with pytest.raises(ValueError, match="residuals of 396 bytes, where 400 are expected"):
        compiled.narrow_with_rest(VALUES, VALUES[1:], COUNTS)
    with pytest.raises(ValueError, match="a payload of 198 bytes, where 200 are expected"):
        compiled.narrow_with_rest(VALUES, VALUES, COUNTS[1:])
    with pytest.raises(ValueError, match="residuals of 396 bytes, where 400 are expected"):
        compiled.take_largest(VALUES, VALUES[1:], PAYLOAD[:8])
    with pytest.raises(ValueError, match="a payload of 12 bytes, for 100 elements"):
        compiled.take_largest(VALUES, VALUES, PAYLOAD[:12])
    with pytest.raises(ValueError, match="a payload of 808 bytes, for 100 elements"):
        compiled.take_largest(VALUES, VALUES, np.zeros(808, np.uint8))
    with pytest.raises(ValueError, match="a payload of 12 bytes, where 8 are expected"):
        compiled.add_largest(PAYLOAD[:12], VALUES)
    with pytest.raises(ValueError, match="3 rows of 100 elements"):
        compiled.orthonormalise(VALUES, 3)
    with pytest.raises(ValueError, match="0 rows of 100 elements"):
        compiled.orthonormalise(VALUES, 0)
    with pytest.raises(ValueError, match="matrices of 100 and 99 elements, and of rank 4"):
        compiled.multiply(VALUES, VALUES[1:], 4, VALUES, None, 1.0, False)
    with pytest.raises(ValueError, match="a product of 396 bytes, where 400 are expected"):
        compiled.multiply(VALUES, VALUES, 10, VALUES[1:], None, 1.0, False)
    with pytest.raises(ValueError, match="residuals of 396 bytes, where 400 are expected"):
        compiled.multiply(VALUES, VALUES, 10, VALUES, VALUES[1:], 1.0, False)


def test_nothing_that_is_read_only_is_written() -> None:
    frozen = [each.copy() for each in (VALUES, PAYLOAD, COUNTS)]
    for each in frozen:
        each.flags.writeable = False
    values, payload, counts = frozen
    with pytest.raises(ValueError, match="read-only"):
        compiled.encode("2bit", values, values, PAYLOAD, 0.5)
    with pytest.raises(ValueError, match="read-only"):
        compiled.encode("2bit", values, VALUES, payload, 0.5)
    with pytest.raises(ValueError, match="read-only"):
        compiled.count_levels(LEVELS, [payload], counts)
    with pytest.raises(ValueError, match="read-only"):
        compiled.scale_counts(counts, 0.0, 1.0, values)
    with pytest.raises(ValueError, match="read-only"):
        compiled.pack_counts(counts, payload, 4)
    with pytest.raises(ValueError, match="read-only"):
        compiled.unpack_counts(payload, counts, 4)
    with pytest.raises(ValueError, match="read-only"):
        compiled.narrow_with_rest(VALUES, values, COUNTS)
    with pytest.raises(ValueError, match="read-only"):
        compiled.narrow_with_rest(VALUES, VALUES, counts)
    with pytest.raises(ValueError, match="read-only"):
        compiled.take_largest(VALUES, values, PAYLOAD[:8])
    with pytest.raises(ValueError, match="read-only"):
        compiled.take_largest(VALUES, VALUES, payload[:8])
    with pytest.raises(ValueError, match="read-only"):
        compiled.add_largest(PAYLOAD[:8], values)
    with pytest.raises(ValueError, match="read-only"):
        compiled.orthonormalise(values, 1)
    with pytest.raises(ValueError, match="read-only"):
        compiled.multiply(VALUES, VALUES, 10, values, None, 1.0, False)
    with pytest.raises(ValueError, match="read-only"):
        compiled.multiply(VALUES, VALUES, 10, VALUES, values, 1.0, False)


def test_wrong_arguments_are_refused() -> None:
    for function in (compiled.encode, compiled.count_levels, compiled.scale_counts,
                     compiled.pack_counts, compiled.unpack_counts, compiled.take_largest,
                     compiled.add_largest, compiled.orthonormalise, compiled.multiply,
                     compiled.narrow_with_rest):  # fmt: skip
        with pytest.raises(TypeError, match="takes"):
            function()
    with pytest.raises(TypeError):
        compiled.encode("2bit", VALUES, VALUES, PAYLOAD, "0.5")
    with pytest.raises(TypeError):
        compiled.encode(2, VALUES, VALUES, PAYLOAD, 0.5)
    with pytest.raises(TypeError):
        compiled.pack_counts(COUNTS, PAYLOAD, "4")
