"""Arrays of every memory layout, as value and as `out`."""

from __future__ import annotations

import numpy as np

from tests.conformance.expect import full, pulled, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores


@case()
def scalars_without_dimensions(create: Stores) -> None:
    kv = create()
    kv.init("s", np.array(2.0, np.float32))
    assert kv.spec("s").shape == ()
    kv.push("s", np.array(kv.rank + 1, np.float32))
    out = np.array(0, np.float32)
    kv.pull("s", out=out)
    same(out, total(kv))
    given = kv.pull("s")
    assert given.shape == ()
    same(given, total(kv))


@case()
def numpy_scalars_are_arrays(create: Stores) -> None:
    kv = create()
    kv.init("s", np.float32(2))
    kv.push("s", np.float32(kv.rank + 1))
    same(kv.pull("s"), total(kv))
    kv.push("s", [np.float32(1), np.float32(2)])
    same(kv.pull("s"), 3 * kv.num_workers)


@case()
def empty_arrays(create: Stores) -> None:
    kv = create()
    for key, shape in {"none": (0,), "rows": (0, 3), "columns": (3, 0)}.items():
        kv.init(key, full(1, shape))
        kv.push(key, [full(1, shape), full(1, shape)])
        out = full(0, shape)
        kv.pull(key, out=out)
        assert out.shape == kv.pull(key).shape == shape
    kv.init("some", full(1))
    kv.push(["none", "some"], [full(0, (0,)), full(kv.rank + 1)])
    same(pulled(kv, "some"), total(kv))


@case()
def strided_values(create: Stores) -> None:
    kv = create()
    plain = np.arange(24, dtype=np.float32).reshape(4, 6)
    forms = {
        "rows": plain[::2],
        "columns": plain[:, ::3],
        "backwards": plain[::-1, ::-1],
        "transposed": plain.T,
        "fortran": np.asfortranarray(plain),
        "repeated": np.broadcast_to(plain[0], (3, 6)),
        "swapped": plain.reshape(2, 3, 4).transpose(2, 0, 1),
    }
    for key, value in forms.items():
        kv.init(key, value)
        same(kv.pull(key), value)
        kv.push(key, value * np.float32(0))
        kv.push(key, value)
        same(kv.pull(key), value * kv.num_workers)
        kv.push(key, [value, np.ascontiguousarray(value)])
        same(kv.pull(key), 2 * value * kv.num_workers)


@case()
def strided_outs(create: Stores) -> None:
    kv = create()
    want = np.arange(12, dtype=np.float32).reshape(3, 4)
    kv.init("w", want)
    room = full(-1, (6, 8))
    kv.pull("w", out=room[::2, ::2])
    same(room[::2, ::2], want)
    same(room[1::2], -1)
    same(room[::2, 1::2], -1)
    kv.pull("w", out=room[4::-2, 6::-2])
    same(room[4::-2, 6::-2], want)
    fortran = np.asfortranarray(full(-1, (3, 4)))
    kv.pull("w", out=fortran)
    same(fortran, want)
    turned = full(-1, (4, 3))
    kv.pull("w", out=turned.T)
    same(turned, want.T)


@case()
def slices_of_one_array_as_outs(create: Stores) -> None:
    kv = create()
    kv.init([1, 2], [full(1, (4,)), full(2, (4,))])
    room = full(0, (8,))
    kv.pull([1, 2], out=[room[:4], room[4:]])
    same(room, [1] * 4 + [2] * 4)
    kv.pull([1, 2], out=[room[::2], room[1::2]])
    same(room, [1, 2] * 4)


@case()
def read_only_values(create: Stores) -> None:
    kv = create()
    value = full(kv.rank + 1)
    value.flags.writeable = False
    kv.init("r", value)
    kv.push("r", value)
    same(pulled(kv, "r"), total(kv))
    out = full(0)
    kv.pushpull("r", value, out=out)
    same(out, total(kv))


@case()
def one_array_as_every_value(create: Stores) -> None:
    kv = create()
    kv.init([1, 2], [full(0), full(0)])
    value = full(kv.rank + 1)
    kv.push([1, 2], [[value] * 3, value])
    same(pulled(kv, 1), 3 * total(kv))
    same(pulled(kv, 2), total(kv))
    same(value, kv.rank + 1)


@case()
def overlapping_values(create: Stores) -> None:
    kv = create()
    kv.init("o", full(0, (4,)))
    room = np.arange(6, dtype=np.float32)
    kv.push("o", [room[:4], room[1:5], room[2:]])
    same(pulled(kv, "o", full(0, (4,))), np.array([3, 6, 9, 12]) * kv.num_workers)


@case()
def out_is_a_reversed_view_of_the_value(create: Stores) -> None:
    kv = create()
    kv.init("o", full(0, (4,)))
    room = np.arange(4, dtype=np.float32)
    kv.pushpull("o", room, out=room[::-1])
    same(room[::-1], np.arange(4) * kv.num_workers)


@case()
def the_same_array_twice_as_out(create: Stores) -> None:
    kv = create()
    kv.init([9, 3], [full(90), full(30)])
    kv.init(5, full(50))
    out = full(0)
    # Integer keys are copied in ascending order, so the highest key's value stays.
    kv.pull([9, 3, 5], out=[out, out, out])
    same(out, 90)
    strings = create()
    for name in ("z", "a", "m"):
        strings.init(name, full(ord(name)))
    # String keys are copied in the order of init.
    strings.pull(["m", "a", "z"], out=[out] * 3)
    same(out, ord("m"))


@case()
def subclasses_of_ndarray(create: Stores) -> None:
    kv = create()
    matrix = np.ones((2, 3), np.float32).view(np.matrix)
    kv.init("m", matrix)
    kv.push("m", matrix)
    same(pulled(kv, "m"), kv.num_workers)
    kv.pull("m", out=matrix)
    same(np.asarray(matrix), kv.num_workers)
