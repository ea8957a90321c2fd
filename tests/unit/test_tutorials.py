"""Five tutorials of MXNet's KVStore, with their numbers and printed lines.

Each uses the notation of its language, so that a reader can compare it with the original.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ncclkv

SHAPE = (2, 3)


def ones(factor: float = 1) -> NDArray[Any]:
    """Return the array of ``mx.nd.ones(shape) * factor``, in single precision."""
    return np.full(SHAPE, factor, np.float32)


def perl(array: NDArray[Any]) -> str:
    """Return the text of an array as PDL prints it."""
    rows = "".join(f" [{' '.join(f'{x:g}' for x in row)}]\n" for row in array)
    return f"[\n{rows}]"


def scala(array: NDArray[Any]) -> str:
    """Return the text of an array as Scala's ``toArray`` prints it."""
    return f"Array({', '.join(str(x) for x in array.ravel().tolist())})"


def clojure(array: NDArray[Any]) -> str:
    """Return the text of an array as Clojure's ``->vec`` prints it."""
    return f"[{' '.join(str(x) for x in array.ravel().tolist())}]"


def printed(capsys: pytest.CaptureFixture[str], transcript: str) -> None:
    """Check that exactly these lines were printed."""
    assert capsys.readouterr().out == transcript.lstrip("\n")


def test_perl(capsys: pytest.CaptureFixture[str]) -> None:
    def updater(key: Any, grad: NDArray[Any], stored: NDArray[Any]) -> None:
        print(f"update on key: {key}")
        stored += grad * 3

    with ncclkv.create("local") as kv:
        a = ones(0)
        kv.init(3, ones(2))
        kv.pull(3, out=a)
        print(perl(a))
        kv.push(3, ones(8))
        kv.pull(3, out=a)
        print(perl(a))
        kv.push(3, [ones(), ones()])
        kv.pull(3, out=a)
        print(perl(a))
        kv._set_updater(updater)
        kv.push(3, [ones(), ones()])
        b = [ones(0), ones(0)]
        kv.pull(3, out=b)
        print(perl(b[0]))
        print(perl(b[1]))
        keys = [5, 7, 9]
        kv.init(keys, [ones() for _ in keys])
        kv.push(keys, [ones() for _ in keys])
        b = [ones() for _ in keys]
        kv.pull(keys, out=b)
        for each in b:
            print(perl(each))
    lines = "[\n [{0} {0} {0}]\n [{0} {0} {0}]\n]\n"
    wanted = lines.format(2) + lines.format(8) + lines.format(2)
    wanted += "update on key: 3\n" + lines.format(8) * 2
    wanted += "update on key: 5\nupdate on key: 7\nupdate on key: 9\n" + lines.format(4) * 3
    printed(capsys, wanted)


def test_python_basics(capsys: pytest.CaptureFixture[str]) -> None:
    with ncclkv.create("local") as kv:
        kv.init(3, ones(2))
        a = ones(0)
        kv.pull(3, out=a)
        print(a)
        kv.push(3, ones(8))
        kv.pull(3, out=a)
        print(a)
        b = [ones() for _ in range(4)]
        kv.push(3, b)
        kv.pull(3, out=a)
        print(a)
    printed(
        capsys,
        """
[[2. 2. 2.]
 [2. 2. 2.]]
[[8. 8. 8.]
 [8. 8. 8.]]
[[4. 4. 4.]
 [4. 4. 4.]]
""",
    )


PYTHON_UPDATER_AND_LISTS = """
[[4. 4. 4.]
 [4. 4. 4.]]
update on key: 3
[[6. 6. 6.]
 [6. 6. 6.]]
[[6. 6. 6.]
 [6. 6. 6.]]
update on key: 5
update on key: 7
update on key: 9
[[3. 3. 3.]
 [3. 3. 3.]]
update on key: 5
update on key: 7
update on key: 9
[[11. 11. 11.]
 [11. 11. 11.]]
"""


def test_python_updater_and_lists(capsys: pytest.CaptureFixture[str]) -> None:
    def update(key: int, input: NDArray[Any], stored: NDArray[Any]) -> None:
        print("update on key: %d" % key)  # noqa: UP031
        stored += input * 2

    with ncclkv.create("local") as kv:
        kv.init(3, ones(4))
        a, b = ones(0), [ones() for _ in range(4)]
        kv._set_updater(update)
        kv.pull(3, out=a)
        print(a)
        kv.push(3, ones())
        kv.pull(3, out=a)
        print(a)
        kv.pull(3, out=b)
        print(b[1])
        keys = [5, 7, 9]
        kv.init(keys, [ones()] * len(keys))
        kv.push(keys, [ones()] * len(keys))
        # The tutorial passes one array for every key: it keeps the last key's value.
        b = [ones(0)] * len(keys)
        kv.pull(keys, out=b)
        print(b[1])
        lists = [[ones() for _ in range(4)]] * len(keys)
        kv.push(keys, lists)
        kv.pull(keys, out=lists)
        print(lists[1][1])
    printed(capsys, PYTHON_UPDATER_AND_LISTS)


class ScalaUpdater:
    """The ``MXKVStoreUpdater`` of the tutorial."""

    def update(self, key: int, input: NDArray[Any], stored: NDArray[Any]) -> None:
        print(f"update on key {key}")
        stored += input * 2

    def dispose(self) -> None:
        print("disposed")


SCALA = """
Array(2.0, 2.0, 2.0, 2.0, 2.0, 2.0)
Array(8.0, 8.0, 8.0, 8.0, 8.0, 8.0)
Array(4.0, 4.0, 4.0, 4.0, 4.0, 4.0)
Array(4.0, 4.0, 4.0, 4.0, 4.0, 4.0)
update on key 3
Array(6.0, 6.0, 6.0, 6.0, 6.0, 6.0)
Array(6.0, 6.0, 6.0, 6.0, 6.0, 6.0)
update on key 5
update on key 7
update on key 9
Array(3.0, 3.0, 3.0, 3.0, 3.0, 3.0)
disposed
"""


def test_scala(capsys: pytest.CaptureFixture[str]) -> None:
    with ncclkv.create("local") as kv:
        a = ones(0)
        kv.init(3, ones(2))
        kv.pull(3, out=a)
        print(scala(a))
        kv.push(3, ones(8))
        kv.pull(3, out=a)
        print(scala(a))
        b = [ones() for _ in range(4)]
        kv.push(3, b)
        kv.pull(3, out=a)
        print(scala(a))
        kv.set_updater(ScalaUpdater())
        kv.pull(3, a)
        print(scala(a))
        kv.push(3, ones())
        kv.pull(3, a)
        print(scala(a))
        kv.pull(3, b)
        print(scala(b[1]))
        keys = [5, 7, 9]
        kv.init(keys, [ones() for _ in keys])
        kv.push(keys, [ones() for _ in keys])
        outs = [ones(0) for _ in keys]
        kv.pull(keys, outs)
        print(scala(outs[1]))
    printed(capsys, SCALA)


def test_clojure(capsys: pytest.CaptureFixture[str]) -> None:
    with ncclkv.create("local") as kv:
        kv.init(["3"], [ones(2)])
        a = ones(0)
        kv.pull(["3"], [a])
        print(clojure(a))
        kv.push(["3"], [ones(8)])
        kv.pull(["3"], [a])
        print(clojure(a))
        kv.push(["3", "3", "3"], [ones(), ones(), ones()])
        kv.pull("3", a)
        print(clojure(a))
        b = [ones(), ones()]
        kv.pull(["3", "3"], b)
        print(*map(clojure, b))
        ks = ["5", "7", "9"]
        kv.init(ks, [ones(), ones(), ones()])
        kv.push(ks, [ones(), ones(), ones()])
        b = [ones(0), ones(0), ones(0)]
        kv.pull(ks, b)
        print(*map(clojure, b))
    printed(
        capsys,
        """
[2.0 2.0 2.0 2.0 2.0 2.0]
[8.0 8.0 8.0 8.0 8.0 8.0]
[3.0 3.0 3.0 3.0 3.0 3.0]
[3.0 3.0 3.0 3.0 3.0 3.0] [3.0 3.0 3.0 3.0 3.0 3.0]
[1.0 1.0 1.0 1.0 1.0 1.0] [1.0 1.0 1.0 1.0 1.0 1.0] [1.0 1.0 1.0 1.0 1.0 1.0]
""",
    )


@pytest.mark.parametrize("name", ["device", "local"])
def test_numpy_interface(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    def update(key: int, input: NDArray[Any], stored: NDArray[Any]) -> None:
        print("update on key: %d" % key)  # noqa: UP031
        stored += input * 0.01

    with ncclkv.create(name) as kv:
        kv.init(3, ones(-2))
        A = ones(0)
        kv.pull(3, out=A)
        print(A)
        kv.push(3, ones(-7))
        kv.pull(3, out=A)
        print(A)
        kv.push(3, [ones() for _ in range(3)])
        kv.pull(3, out=A)
        print(A)
        keys = [7, 11, 13, 17]
        kv.init(keys, [ones(-3)] * len(keys))
        C = [ones(0)] * len(keys)
        kv.pull(keys, out=C)
        print(C[0])
        kv.push(keys, [[ones(-0.1) for _ in range(3)]] * len(keys))
        kv.pull(keys, out=C)
        print(C[0])
        kv._set_updater(update)
        kv.pull(3, out=A)
        print(A)
        kv.push(3, ones() * 5)
        kv.pull(3, out=A)
        print(A)
    rows = "[[{0} {0} {0}]\n [{0} {0} {0}]]\n"
    values = ["-2.", "-7.", "3.", "-3.", "-0.3", "3."]
    wanted = "".join(rows.format(value) for value in values)
    # The tutorial prints 3 after the last push, and no line of the updater: its authors did not run
    # it.
    wanted += "update on key: 3\n" + rows.format("3.05")
    printed(capsys, wanted)
