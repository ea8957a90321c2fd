"""Residuals in checkpoints: their field in ``checkpoint.json``, and files with too few of them."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is absent: the extra `checkpoint`")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ncclkv
from ncclkv.checkpoint import residuals
from ncclkv.checkpoint.files import Piece
from ncclkv.checkpoint.manifest import from_plain, to_plain
from ncclkv.checkpoint.read import read_residuals
from ncclkv.checkpoint.residuals import (
    MOST,
    CompressionManifest,
    EncodedKey,
    SavedBasis,
    check_residual_count,
    parse_name,
    residual_name,
)
from ncclkv.checkpoint.strict_json import DamagedCheckpoint
from ncclkv.checkpoint.tensors import Tensor, encode
from ncclkv.checkpoint.write import write_files
from ncclkv.errors import CheckpointError
from tests.harness.extent import examples
from tests.unit.checkpoint import small_checkpoints

FLOAT32 = np.dtype("float32")
SENDERS = 11
"""More than ten: sorted as text, sender 10 comes before sender 2."""

COMPRESSION = CompressionManifest("ranks", (EncodedKey(0, "2bit", "rank", SENDERS),))


def head() -> Any:
    """Return a manifest whose first key has residuals."""
    return replace(small_checkpoints.head(), compression=COMPRESSION)


def residual(sender: int) -> np.ndarray:
    """Return the residual of a sender."""
    return np.array([sender, -0.0], np.float32)


def fill(folder: str) -> Any:
    """Write all arrays as one rank."""
    arrays = small_checkpoints.arrays()
    arrays.update({residual_name(0, each): residual(each) for each in range(SENDERS)})
    return head(), (yield from write_files(folder, arrays.items()))


def fill_by_ranks(folder: str) -> Any:
    """Write a file for each rank, with its residual in two pieces."""
    files = []
    for rank in range(SENDERS):
        mine: Any = list(small_checkpoints.arrays().items()) if rank == 0 else []
        name = residual_name(0, rank)
        mine += [(Piece(name, lo, lo + 1), residual(rank)[lo : lo + 1]) for lo in range(2)]
        files += yield from write_files(folder, mine, rank)
    return head(), files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return small_checkpoints.written(tmp_path, fill=fill)


def refused(path: Path, *words: str) -> None:
    """Check that a load fails with these words in its error."""
    with pytest.raises(DamagedCheckpoint) as caught:
        small_checkpoints.loaded(path)
    for word in (path.name, *words):
        assert word in str(caught.value), caught.value


@pytest.mark.parametrize("writes", [fill, fill_by_ranks])
def test_residuals_are_read_again_in_the_order_of_senders(
    tmp_path: Path, writes: Callable[[str], Any]
) -> None:
    found = small_checkpoints.loaded(small_checkpoints.written(tmp_path, fill=writes))
    assert found is not None
    assert found.manifest.compression == COMPRESSION
    assert found.arrays.keys() == small_checkpoints.arrays().keys()
    parts = [part for of_file in read_residuals(found) for part in of_file]
    assert [parse_name(piece.tensor)[1] for piece, _ in parts] == sorted(
        [*range(SENDERS)] * (len(parts) // SENDERS)
    )
    whole = {sender: np.full(2, np.nan, np.float32) for sender in range(SENDERS)}
    for piece, array in parts:
        whole[parse_name(piece.tensor)[1]][piece.lo : piece.hi] = array
    assert all(whole[each].tobytes() == residual(each).tobytes() for each in whole)


def test_the_field_survives_json() -> None:
    other = EncodedKey(1, "fp16", "rank", 2)
    bases = SavedBasis(0, 12, 2), SavedBasis(1, 3, 0)
    for keys in ((), COMPRESSION.keys, (*COMPRESSION.keys, other)):
        made = replace(head(), compression=CompressionManifest("arrays", keys, bases))
        assert made.tensors()["basis.0"] == Tensor((2, 1), FLOAT32)
        assert "basis.1" not in made.tensors()
        assert from_plain(json.loads(json.dumps(to_plain(made)))) == made
    assert head().tensors()["residual.0.10"] == Tensor((2,), FLOAT32)
    assert to_plain(small_checkpoints.head())["compression"] is None
    assert small_checkpoints.head().residuals() == {}


def test_keys_of_the_same_codec_are_listed_together() -> None:
    keys = [EncodedKey(index, "2bit", "rank", 3 if index % 2 else 4) for index in range(1000)]
    made = residuals.to_plain(CompressionManifest("arrays", (*keys,)))
    assert made is not None
    assert [row["keys"] for row in made["groups"]] == [[*range(0, 1000, 2)], [*range(1, 1000, 2)]]
    found = residuals.from_plain(made, 1000)
    assert found is not None
    assert [*found.keys] == keys


def changed(**fields: Any) -> Any:
    """Return the field ``compression`` with other values for its keys."""
    row = {"codec": "2bit", "scope": "rank", "senders": SENDERS, "keys": [0], **fields}
    return {"each": "ranks", "groups": [row], "bases": []}


def with_bases(*given: dict[str, Any]) -> Any:
    """Return the field ``compression`` with rows of bases."""
    rows = [{"launches": 3, "columns": 0, "keys": [0], **row} for row in given]
    return {**changed(), "bases": rows}


FIELDS: list[tuple[str, Any]] = [
    ("compression is a list, not an object", []),
    ("compression has no 'groups'", {"each": "ranks"}),
    ("compression.each is a int, not a str", {"each": 3, "groups": []}),
    ("compression.each is 'hosts', not a kind of senders", {**changed(), "each": "hosts"}),
    ("compression.groups[0] is a int, not an object", {**changed(), "groups": [3]}),
    ("compression has no 'bases'", {"each": "ranks", "groups": []}),
    ("compression.bases[0].launches is -1, less than 0", with_bases({"launches": -1})),
    ("compression.bases[0].columns is a bool, not an int", with_bases({"columns": True})),
    ("compression.bases[0].keys has the index 9, and the checkpoint", with_bases({"keys": [9]})),
    ("compression has a key twice", with_bases({}, {"launches": 4})),
    ("its arrays need 8,589,934,", with_bases({"columns": 2**31})),
    ("tensor basis.0", with_bases({"columns": 1})),
    ("compression.groups[0].keys[0] is -1, less than 0", changed(keys=[-1])),
    ("compression.groups[0].keys[0] is a bool", changed(keys=[True])),
    ("compression.groups[0].keys has the index 2, and the checkpoint", changed(keys=[0, 2])),
    ("compression.groups[0].senders is -1, less than 0", changed(senders=-1)),
    ("compression.groups[0].senders is a float", changed(senders=1.0)),
    ("compression.groups[0].senders is 0", changed(senders=0)),
    ("compression has 1,048,577 residuals; the limit is 1,048,576", changed(senders=MOST + 1)),
    ("compression.groups[0].codec is '../2bit', not the type", changed(codec="../2bit")),
    ("compression.groups[0].scope is 'rack', not a scope", changed(scope="rack")),
    ("compression has a key twice", {**changed(), "groups": changed()["groups"] * 2}),
    ("compression has a key twice", changed(keys=[0, 0])),
    ("its arrays need", changed(senders=MOST)),
    ("which checkpoint.json does not list", changed(senders=SENDERS - 1)),
    ("it has a tensor 'residual.0.", changed(keys=[1])),
    ("which checkpoint.json does not list", None),
]


@pytest.mark.parametrize(("words", "field"), FIELDS)
def test_malformed_fields_are_refused(path: Path, words: str, field: Any) -> None:
    small_checkpoints.change(path, lambda made: made.update(compression=field))
    refused(path, words)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 12),
    st.sampled_from([2**31, 2**64, 10**400, 0.5, "", "ranks", "arrays", "2bit", "1bit", "node"]),
    st.lists(st.integers(0, 3), max_size=2),
    st.just(dict[str, Any]()),
)


@settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_fields_with_wrong_types_load_whole_or_not_at_all(path: Path, data: Any) -> None:
    original = (path / "checkpoint.json").read_bytes()
    made = json.loads(original)
    field = made["compression"]
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.sampled_from([field, field["groups"][0]]))
        names = [name for name in where if name != "groups"]
        where[data.draw(st.sampled_from(names))] = data.draw(JUNK)
    small_checkpoints.sign(path, json.dumps(made).encode())
    try:
        with ncclkv.create("local") as kv:
            kv.set_gradient_compression({"type": "2bit"})
            try:
                kv.load(path)
            except ncclkv.KVStoreError:
                assert kv.keys() == []
    finally:
        small_checkpoints.sign(path, original)


def test_a_checkpoint_without_the_field_is_refused(path: Path) -> None:
    small_checkpoints.change(path, lambda made: made.pop("compression"))
    refused(path, "it has no 'compression'")


@pytest.mark.parametrize(
    ("words", "sender", "array"),
    [
        ("none of its files has the tensor residual.0.7", 7, None),
        ("tensor residual.0.3 is float32 (1,)", 3, np.zeros(1, np.float32)),
        ("tensor residual.0.3 is float64 (2,)", 3, np.zeros(2)),
        ("it has a tensor 'residual.0.11'", SENDERS, np.zeros(2, np.float32)),
    ],
)
def test_other_residuals_than_the_manifest_lists(
    path: Path, words: str, sender: int, array: Any
) -> None:
    arrays = small_checkpoints.arrays()
    arrays.update({residual_name(0, each): residual(each) for each in range(SENDERS)})
    arrays[residual_name(0, sender)] = array
    blob = encode({name: each for name, each in arrays.items() if each is not None})
    small_checkpoints.replace_tensors(path, blob)
    refused(path, words)


def test_a_residual_in_two_files_is_refused(tmp_path: Path) -> None:
    def twice(folder: str) -> Any:
        manifest, files = yield from fill(folder)
        again = {residual_name(0, 4): residual(4)}
        return manifest, files + (yield from write_files(folder, again.items(), 1))

    refused(
        small_checkpoints.written(tmp_path, fill=twice),
        "it has the tensor residual.0.4, which an earlier file has",
    )


def test_a_claim_of_many_residuals_takes_little_memory(path: Path) -> None:
    field = changed(keys=[0, 1], senders=MOST)
    small_checkpoints.change(path, lambda made: made.update(compression=field))
    tracemalloc.start()
    try:
        refused(path, "compression has 2,097,152 residuals")
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_more_residuals_than_the_limit_are_not_saved() -> None:
    keys = [EncodedKey(index, "2bit", "rank", MOST // 2) for index in range(3)]
    check_residual_count(keys[:2])
    with pytest.raises(CheckpointError, match=r"1,572,864 residuals.*compress fewer keys"):
        check_residual_count(keys)


def test_a_file_that_changes_before_it_is_read_again_is_refused(path: Path) -> None:
    found = small_checkpoints.loaded(path)
    assert found is not None
    tensors = path / "tensors-0000.safetensors"
    blob = tensors.read_bytes()
    tensors.write_bytes(blob[:-1] + b"\1")
    with pytest.raises(DamagedCheckpoint, match="tensors-0000.safetensors: its SHA-256"):
        [*read_residuals(found)]
    tensors.unlink()
    with pytest.raises(DamagedCheckpoint, match="No such file"):
        [*read_residuals(found)]


def test_no_residual_stays_in_memory(tmp_path: Path) -> None:
    """Check that the residuals of one file alone are in memory: all of them may be too many."""
    large = np.zeros(2**18, np.float32)

    def fill_large(folder: str) -> Any:
        files = []
        manifest = small_checkpoints.head()
        spec = replace(manifest.keys[0].spec, shape=large.shape)
        keys = manifest.keys[0]._replace(spec=spec, states={}), manifest.keys[1]
        for rank in range(SENDERS):
            mine: Any = {residual_name(0, rank): large}
            if rank == 0:
                mine |= {**small_checkpoints.arrays(), "value.0": large}
                del mine["state.0.momentum"]
            files += yield from write_files(folder, mine.items(), rank)
        return replace(manifest, keys=keys, compression=COMPRESSION), files

    where = small_checkpoints.written(tmp_path, fill=fill_large)
    tracemalloc.start()
    try:
        found = small_checkpoints.loaded(where)
        assert found is not None
        assert sum(len(parts) for parts in read_residuals(found)) == SENDERS
        assert tracemalloc.get_traced_memory()[1] < 6 * large.nbytes
    finally:
        tracemalloc.stop()
