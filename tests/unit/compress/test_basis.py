"""The Q with which the sums of a key begin, and the state that powersgd keeps of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclkv.compress.basis import Basis
from ncclkv.compress.powersgd import PowerSGD
from ncclkv.kernels.host import HostKernels

SHAPE = (40, 30)


def begun(**parameters: Any) -> tuple[Basis, PowerSGD]:
    """Return a basis whose first sum has begun, and its codec."""
    basis = Basis("w", SHAPE, HostKernels())
    codec = PowerSGD(matrix_approximation_rank=2, start_powerSGD_iter=3, **parameters)
    basis.launches += 1
    basis.allocate(codec)
    basis.begin(codec)
    return basis, codec


@pytest.mark.parametrize(("launches", "due"), [(0, False), (2, False), (3, True), (4, True)])
def test_the_first_sums_are_whole(launches: int, due: bool) -> None:
    basis, codec = begun()
    basis.launches = launches
    assert basis.is_due(codec) == due


def test_sums_begin_with_the_last_q() -> None:
    basis, codec = begun()
    assert basis.q.tolist() == basis.spare.tolist() == codec.basis("w", SHAPE).tolist()
    basis.q[...] = 5
    basis.launches += 1
    basis.begin(codec)
    assert (basis.q == 5).all()
    assert basis.spare.tolist() == codec.basis("w", SHAPE).tolist()


def test_each_sum_has_another_q_without_a_warm_start() -> None:
    basis, codec = begun(warm_start=False)
    for launch in range(1, 4):
        assert basis.q.tolist() == codec.basis("w", SHAPE, launch).tolist()
        basis.launches += 1
        basis.begin(codec)


def test_matrices_stay_in_their_memory() -> None:
    basis, codec = begun()
    q, spare = basis.q, basis.spare
    basis.allocate(codec)
    basis.reset()
    basis.begin(codec)
    basis.restore(codec, np.ones((2, 30), np.float32))
    assert basis.q is q
    assert basis.spare is spare
    assert (q == 1).all()


def test_another_codec_begins_again_if_its_matrices_have_another_shape() -> None:
    basis, _ = begun()
    basis.q[...] = 5
    narrow, seeded = PowerSGD(), PowerSGD(matrix_approximation_rank=2, random_seed=7)
    basis.allocate(seeded)
    assert basis.has_sum
    assert (basis.q == 5).all()
    assert basis.spare.tolist() == seeded.basis("w", SHAPE).tolist()
    basis.allocate(narrow)
    assert not basis.has_sum
    basis.begin(narrow)
    assert basis.q.tolist() == basis.spare.tolist() == narrow.basis("w", SHAPE).tolist()


def test_a_saved_q_of_another_shape_is_dropped() -> None:
    basis, codec = Basis("w", SHAPE, HostKernels()), PowerSGD(matrix_approximation_rank=2)
    basis.restore(codec, np.ones((3, 30), np.float32))
    assert not basis.has_sum
    basis.restore(codec, np.ones((2, 30), np.float32))
    assert basis.has_sum
    basis.begin(codec)
    assert (basis.q == 1).all()


def test_a_state_is_a_copy() -> None:
    basis, codec = begun()
    first, before = basis.state(), basis.q.copy()
    basis.q[...] = 5
    basis.launches += 1
    second = basis.state()
    basis.reset(first)
    assert (basis.launches, basis.q.tolist()) == (1, before.tolist())
    basis.reset(second)
    assert basis.launches == 2
    assert (basis.q == 5).all()
    basis.reset()
    assert basis.state() == (0, None)
    basis.begin(codec)
    assert basis.q.tolist() == before.tolist()
