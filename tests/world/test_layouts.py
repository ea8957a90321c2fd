"""Layouts of a program's arrays: copies with the same numbers, in other places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.world.arrays import Array
from tests.world.draw import draw
from tests.world.layouts import LAYOUTS, laid_out

GIVEN = [
    np.arange(6.0).reshape(2, 3),
    np.arange(6.0).reshape(2, 3),
    np.array(True),
    np.arange(6.0).reshape(2, 3) + 1,
    np.zeros((0,), "f2"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_are_writable_copies(layout: str) -> None:
    made = laid_out(GIVEN, layout, {})
    for new, old in zip(made, GIVEN, strict=True):
        assert np.array_equal(new, old)
        assert (new.shape, new.dtype) == (old.shape, old.dtype)
        assert new.flags.writeable
        assert not np.shares_memory(new, old)
    pairs = [(one, other) for i, one in enumerate(made) for other in made[:i] if one is not other]
    assert not any(np.shares_memory(*pair) for pair in pairs)


def test_layouts_are_what_their_names_say() -> None:
    kept: dict[Any, Array] = {}
    made = {layout: laid_out(GIVEN, layout, kept) for layout in LAYOUTS}
    assert made["same"][0] is made["same"][1]
    assert laid_out(GIVEN, "kept", kept)[0] is made["kept"][0]
    assert made["slices"][0].base is made["slices"][1].base is not None
    assert not made["slices"][3].flags.aligned
    assert made["woven"][0].base is made["woven"][1].base is not None
    assert made["fortran"][0].flags.f_contiguous
    assert made["reversed"][0].strides == (-24, -8)


def test_every_layout_is_drawn() -> None:
    steps = [step for seed in range(100) for step in draw(seed, 2, 8).steps]
    assert {getattr(step, "layout", "plain") for step in steps} == {*LAYOUTS, "views"}
