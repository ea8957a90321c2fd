"""Files of several ranks: pieces that make whole tensors, and pieces that do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is absent: the extra `checkpoint`")

from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.checkpoint.files import Assembly, File, Piece, check_pieces, from_rows, rows
from ncclkv.checkpoint.manifest import OwnedStates, from_plain, to_plain
from ncclkv.checkpoint.strict_json import DamagedCheckpoint
from ncclkv.checkpoint.tensors import Tensor, decode, encode
from tests.harness.extent import examples
from tests.unit.checkpoint import small_checkpoints


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return small_checkpoints.written(tmp_path, fill=small_checkpoints.fill_divided)


def test_pieces_are_read_as_whole_tensors(path: Path) -> None:
    assert sorted(each.name for each in path.glob("tensors-*")) == [
        "tensors-0000-of-rank-0.safetensors",
        "tensors-0000-of-rank-1.safetensors",
    ]
    listed = json.loads((path / "checkpoint.json").read_text())["files"]
    assert [row["pieces"] for row in listed] == [
        [["value.0", 0, 1]],
        [["value.0", 1, 2], ["value.1", 0, 1], ["value.1", 1, 2]],
    ]
    found = small_checkpoints.loaded(path)
    assert found is not None
    assert found.arrays.keys() == small_checkpoints.arrays().keys()
    for name, array in small_checkpoints.arrays().items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].shape == array.shape
        assert found.arrays[name].tobytes() == array.tobytes()


def test_states_of_ranks_survive_json() -> None:
    states: Any = ({5: Tensor((2,), np.dtype("int8")), "n": [3]}, {})
    head = replace(small_checkpoints.head(), updater=None, owned=OwnedStates(states, (1, None)))
    assert from_plain(json.loads(json.dumps(to_plain(head)))) == head
    assert head.tensors()["updater.0.0"] == Tensor((2,), np.dtype("int8"))


OWNED: list[tuple[str, Any]] = [
    ("updater_by_rank is a list, not an object", []),
    ("updater_by_rank has no 'owners'", {"states": [[]]}),
    ("updater_by_rank.states is a dict, not a list", {"states": {}, "owners": [0, 0]}),
    ("updater is not a list of pairs", {"states": [3], "owners": [0, 0]}),
    *(
        ("owners does not name a rank for each key", {"states": [[]], "owners": owners})
        for owners in ([0], [0, 0, 0], [0, 1], [0, -1], [0, False], [0, 0.0], [0, "0"], [0, [0]])
    ),
]


@pytest.mark.parametrize(("words", "owned"), OWNED)
def test_malformed_states_of_ranks_are_refused(words: str, owned: Any) -> None:
    made = json.loads(json.dumps(to_plain(small_checkpoints.head())))
    with pytest.raises(DamagedCheckpoint) as caught:
        from_plain({**made, "updater_by_rank": owned})
    assert words in str(caught.value), caught.value


DTYPES = ["bool", "int8", "float16", "float32", "complex128"]


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_random_pieces_are_the_tensors(data: Any) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    wanted, stored = {}, [dict[str, Any]() for _ in range(3)]
    pieces = [list[Piece]() for _ in stored]
    whole = {}
    for index in range(data.draw(st.integers(1, 4))):
        shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=3)))
        name, dtype = f"value.{index}", data.draw(st.sampled_from(DTYPES))
        whole[name] = rng.integers(0, 2, shape).astype(dtype)
        wanted[name] = Tensor(shape, np.dtype(dtype))
        size = whole[name].size
        cuts = data.draw(st.lists(st.integers(1, max(1, size)), max_size=3))
        bounds = sorted({0, size, *(cut for cut in cuts if cut < size)})
        if len(bounds) < 3:
            stored[data.draw(st.integers(0, 2))][name] = whole[name]
            continue
        for lo, hi in pairwise(bounds):
            rank = data.draw(st.integers(0, 2))
            pieces[rank].append(Piece(name, lo, hi))
            stored[rank][pieces[rank][-1].name] = whole[name].reshape(-1)[lo:hi]
    files = [File(f"f{rank}", 0, "", tuple(each)) for rank, each in enumerate(pieces)]
    assembly = Assembly(files, wanted)
    for file, arrays in zip(files, stored, strict=True):
        assembly.add(file, decode(encode(arrays), assembly.stored(file)))
    found = assembly.complete()
    assert found.keys() == whole.keys()
    for name, array in whole.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
        assert found[name].tobytes() == array.tobytes()


WRONG: dict[str, list[tuple[str, int, int]]] = {
    "have elements up to 4 and then [5, 10)": [("v", 0, 4), ("v", 5, 10)],
    "have elements up to 6 and then [5, 10)": [("v", 0, 6), ("v", 5, 10)],
    "have elements up to 0 and then [1, 10)": [("v", 1, 10)],
    "have elements up to 10 and then [0, 10)": [("v", 0, 10), ("v", 0, 10)],
    "then [4, 11), and the tensor has 10 elements": [("v", 0, 4), ("v", 4, 11)],
    "have 9 of its 10 elements": [("v", 0, 4), ("v", 4, 9)],
    "a piece of 'w', which is none of its tensors": [("v", 0, 10), ("w", 0, 10)],
}


@pytest.mark.parametrize("words", WRONG)
def test_pieces_with_gaps_or_overlaps_are_refused(words: str) -> None:
    files = [File(str(n), 0, "", (Piece(*each),)) for n, each in enumerate(WRONG[words])]
    for order in (files, files[::-1]):
        with pytest.raises(DamagedCheckpoint) as caught:
            check_pieces(order, {"v": Tensor((2, 5), np.dtype("int8"))})
        assert words in str(caught.value)


@pytest.mark.parametrize(
    "piece",
    [
        *(None, "value.0", {"v": 0}, [], ["v", 0], ["v", 0, 1, 2], [0, 0, 1]),
        *(["v", 1, 1], ["v", -1, 1], ["v", False, 1], ["v", 0, 1.0]),
    ],
)
def test_malformed_pieces_are_refused(piece: Any) -> None:
    made = {"files": rows([File("tensors-0000.safetensors", 1, "0" * 64)])}
    made["files"][0]["pieces"] = [piece]
    with pytest.raises(DamagedCheckpoint, match="is not a piece of a tensor"):
        from_rows(made)


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no pieces": (lambda made: made["files"][0].pop("pieces"), "files[0] has no 'pieces'"),
    "not listed": (
        lambda made: made["files"][1]["pieces"].pop(),
        "the pieces of tensor value.1 have 1 of its 2 elements",
    ),
    "in the other file": (
        lambda made: made["files"][0]["pieces"].append(made["files"][1]["pieces"].pop()),
        "it lacks value.1[1:2], which checkpoint.json lists",
    ),
    "other bounds": (
        lambda made: made["files"][1].update(
            pieces=[["value.0", 1, 2], ["value.1", 0, 2]],
        ),
        "a tensor 'value.1[0:1]', which checkpoint.json does not list",
    ),
    "a whole tensor as a piece": (
        lambda made: made["files"][1]["pieces"].append(["state.0.momentum", 0, 2]),
        "a tensor 'state.0.momentum', which checkpoint.json does not list",
    ),
    "of a negative rank": (
        lambda made: made["files"][0].update(name="tensors-0000-of-rank--1.safetensors"),
        "is not a file of a checkpoint",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_manifests_that_describe_other_pieces_are_refused(path: Path, name: str) -> None:
    change, words = CHANGES[name]
    small_checkpoints.change(path, change)
    with pytest.raises(DamagedCheckpoint) as caught:
        small_checkpoints.loaded(path)
    assert words in str(caught.value), caught.value
