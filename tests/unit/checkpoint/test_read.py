"""Damaged or forged files: always a `CheckpointError`, never a crash."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is absent: the extra `checkpoint`")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ncclkv
from ncclkv.checkpoint.strict_json import DamagedCheckpoint
from ncclkv.errors import CheckpointError
from tests.harness.extent import examples, some_or_all
from tests.unit.checkpoint import small_checkpoints

FILES = ["checkpoint.json", "checkpoint.sha256", "tensors-0000.safetensors"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return small_checkpoints.written(tmp_path)


def refused(path: Path, *words: str) -> None:
    """Check that a load fails with these words in its error."""
    with pytest.raises(DamagedCheckpoint) as caught:
        small_checkpoints.loaded(path)
    for word in (path.name, *words):
        assert word in str(caught.value), caught.value


@pytest.mark.parametrize("name", FILES)
def test_every_truncation_of_a_file_is_refused(path: Path, name: str) -> None:
    blob = (path / name).read_bytes()
    for length in range(len(blob)):
        (path / name).write_bytes(blob[:length])
        refused(path, name if name != FILES[1] else FILES[0])
    (path / name).write_bytes(blob + b"\0")
    refused(path)


@pytest.mark.parametrize("name", FILES)
def test_every_changed_byte_is_refused(path: Path, name: str) -> None:
    blob = (path / name).read_bytes()
    for place in range(len(blob)):
        for bit in (1, 128):
            changed = bytearray(blob)
            changed[place] ^= bit
            (path / name).write_bytes(changed)
            refused(path)


def test_every_truncation_of_tensors_with_valid_digests_is_refused(path: Path) -> None:
    blob = (path / FILES[2]).read_bytes()
    for length in range(len(blob)):
        small_checkpoints.replace_tensors(path, blob[:length])
        refused(path)


def test_every_flipped_bit_of_the_tensor_header_with_valid_digests(path: Path) -> None:
    """Check that a load which succeeds returns the right names, shapes and dtypes."""
    blob = (path / FILES[2]).read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    for place in range(8 + length):
        for bit in some_or_all((0, 5, 7), range(8)):
            changed = bytearray(blob)
            changed[place] ^= 1 << bit
            small_checkpoints.replace_tensors(path, bytes(changed))
            loads_whole_or_not_at_all(path)


def loads_whole_or_not_at_all(path: Path) -> None:
    try:
        found = small_checkpoints.loaded(path)
    except DamagedCheckpoint:
        return
    assert found is not None
    wanted = found.manifest.tensors()
    assert found.arrays.keys() == wanted.keys()
    for name, array in found.arrays.items():
        assert (array.shape, array.dtype) == wanted[name]


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from(
        [2**31, 2**63, 2**64, 10**400, -1, 0.5, 1e308, "", "../../etc/passwd", "\ud800"]
    ),
    st.sampled_from(["bfloat16", "float64", "object", "<f4", "sum", "mean", "key", "a", "step"]),
    st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.sampled_from(["key", "value", "shape"]), st.integers(), max_size=2),
)


@settings(
    max_examples=examples(500),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_manifests_with_wrong_types_are_refused(path: Path, data: Any) -> None:
    original = (path / FILES[0]).read_bytes()
    made = json.loads(original)
    for _ in range(data.draw(st.integers(1, 3))):
        places = list(containers(made))
        where = data.draw(st.sampled_from(places))
        options = list(where) if isinstance(where, dict) else list(range(len(where)))
        if options:
            which = data.draw(st.sampled_from(options))
            if data.draw(st.booleans()):
                where[which] = data.draw(JUNK)
            else:
                del where[which]
    small_checkpoints.sign(path, json.dumps(made).encode())
    try:
        loads_whole_or_not_at_all(path)
        loads_into_a_store_or_leaves_it(path)
    finally:
        small_checkpoints.sign(path, original)


def containers(made: Any) -> Any:
    """Yield all lists and dicts in a structure."""
    if isinstance(made, (dict, list)):
        yield made
        for item in made.values() if isinstance(made, dict) else made:
            yield from containers(item)


def loads_into_a_store_or_leaves_it(path: Path) -> None:
    """Check that a store gets all values, or raises a `CheckpointError` and stays as it was."""
    with ncclkv.create("local") as kv:
        try:
            kv.load(path)
        except ncclkv.KVStoreError:
            assert kv.keys() == []
            kv.init("w", np.ones(2))
            assert kv.pull("w")[0] == 1


@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_random_json_as_manifest_is_refused(path: Path, text: bytes) -> None:
    original = (path / FILES[0]).read_bytes()
    small_checkpoints.sign(path, text)
    refused(path)
    small_checkpoints.sign(path, original)


def nested(made: dict[str, Any]) -> None:
    made["files"][0]["name"] = "../../tensors-0000.safetensors"


HEADS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "foreign": (lambda made: made.update(format="torch"), "its format is 'torch'"),
    "older": (lambda made: made.update(version=0), "version 0 of the format"),
    "newer": (lambda made: made.update(version=2), "version 2 of the format"),
    "escape": (nested, "is not a file of a checkpoint"),
    "absolute": (
        lambda made: made["files"][0].update(name="/etc/passwd"),
        "is not a file of a checkpoint",
    ),
    "twice": (lambda made: made["files"].append(made["files"][0]), "it lists a file twice"),
    "none": (lambda made: made["files"].clear(), "its files have 0"),
    "negative step": (lambda made: made.update(step=-1), "step is -1, less than 0"),
    "step is true": (lambda made: made.update(step=True), "step is a bool, not an int"),
    "step is a float": (lambda made: made.update(step=1.0), "step is a float, not an int"),
    "no keys": (lambda made: made.pop("keys"), "it has no 'keys'"),
    "keys are a dict": (lambda made: made.update(keys={}), "keys is a dict, not a list"),
    "key is a list": (lambda made: made["keys"][0].update(key=[1]), "is not a key"),
    "key is true": (lambda made: made["keys"][0].update(key=True), "True is not a key"),
    "kinds": (lambda made: made["keys"][0].update(key=3), "or keys of two types"),
    "key twice": (lambda made: made["keys"][0].update(key="b"), "it has a key twice"),
    "op": (lambda made: made["keys"][0].update(op="mean"), "'mean' is not an op"),
    "pickle": (lambda made: made["keys"][0].update(dtype="object"), "'object' is not a dtype"),
    "shape": (lambda made: made["keys"][0].update(shape=[-1]), "[-1] is not a shape"),
    "axes": (lambda made: made["keys"][0].update(shape=[1] * 99), "is a shape beyond the limits"),
    "claims": (lambda made: made["keys"][0].update(shape=[2**40]), "its arrays need"),
    "claims of nothing": (
        lambda m: m["keys"][0].update(shape=[0, 2**62]),
        "is a shape beyond the limits",
    ),
    "large file": (lambda made: made["files"][0].update(bytes=2**50), "its files have"),
    "other shape": (
        lambda made: made["keys"][0].update(shape=[1, 2]),
        "state.0.momentum is",
    ),
    "states in a list": (
        lambda m: m["keys"][0].update(states=["float32"]),
        "keys[0].states is a list, not an object",
    ),
    "name of a state": (
        lambda m: m["keys"][0].update(states={"../m": "int8"}),
        "not a name of an optimizer's state",
    ),
    "dtype of a state": (lambda m: m["keys"][0].update(states={"m": 3}), "3 is not a dtype"),
    "no updates": (lambda made: made["keys"][0].pop("updates"), "keys[0] has no 'updates'"),
    "negative updates": (
        lambda made: made["keys"][0].update(updates=-1),
        "keys[0].updates is -1",
    ),
    "states of none": (lambda made: made.update(optimizer=None), "but no optimizer"),
    "updater": (lambda made: made["updater"][0].pop(), "updater is not a list of pairs"),
    "updater twice": (
        lambda made: made["updater"][1].__setitem__(0, "n"),
        "updater has a key twice",
    ),
    "without a tensor": (lambda made: made["keys"].pop(), "does not list"),
    "one more tensor": (
        lambda made: made["keys"].append({**made["keys"][1], "key": "c", "shape": [0]}),
        "none of its files has the tensor value.2",
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_manifests_with_other_values_are_refused(path: Path, name: str) -> None:
    change, words = HEADS[name]
    small_checkpoints.change(path, change)
    refused(path, words)


TEXTS = {
    "NaN is not a number of JSON": '{"step": NaN}',
    "-Infinity is not a number of JSON": '{"step": -Infinity}',
    "beyond the range of a float": '{"step": 1e999}',
    "an object has a name twice": '{"step": 1, "step": 2}',
    "nested too deeply": "[" * 100_000,
    "it is a list, not an object": "[]",
    "it is not JSON": "{'step': 1}",
    "a number has 100,000 digits": '{"step": ' + "9" * 100_000 + "}",
}


@pytest.mark.parametrize("words", TEXTS)
def test_texts_that_are_no_manifest_are_refused(path: Path, words: str) -> None:
    small_checkpoints.sign(path, TEXTS[words].encode())
    refused(path, "checkpoint.json", words)


def test_invalid_utf_8_is_refused(path: Path) -> None:
    small_checkpoints.sign(path, b'{"step": "\xff"}')
    refused(path, "it is not JSON")


@pytest.mark.parametrize("name", FILES)
def test_only_regular_files_are_read(path: Path, name: str, tmp_path: Path) -> None:
    blob = (path / name).read_bytes()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(blob)
    (path / name).unlink()
    refused(path if name != FILES[0] else tmp_path, name, "No such file")
    (path / name).mkdir()
    refused(path, "is not a regular file")
    (path / name).rmdir()
    os.mkfifo(path / name)
    refused(path, "is not a regular file")
    (path / name).unlink()
    (path / name).symlink_to(elsewhere)
    refused(path, "is a symbolic link")


def test_checkpoints_that_are_no_directories_are_refused(path: Path, tmp_path: Path) -> None:
    newer = tmp_path / "step-000000007-save-000002"
    for make in (newer.touch, lambda: newer.symlink_to(path)):
        make()
        refused(tmp_path, newer.name, "it is not a directory", f"kv.load({str(path)!r})")
        newer.unlink()
    # The user's own link may be loaded by its name.
    (tmp_path / "best").symlink_to(path)
    assert small_checkpoints.loaded(tmp_path / "best") is not None


def test_the_error_names_an_older_checkpoint_only_if_it_is_intact(
    path: Path, tmp_path: Path
) -> None:
    second, third = small_checkpoints.written(tmp_path), small_checkpoints.written(tmp_path)
    (third / FILES[2]).write_bytes(b"")
    refused(tmp_path, third.name, f"an older checkpoint is intact: kv.load({str(second)!r})")
    (second / FILES[1]).unlink()
    refused(tmp_path, third.name, f"an older checkpoint is intact: kv.load({str(path)!r})")
    (path / FILES[0]).unlink()
    refused(tmp_path, third.name, "none of the 2 older checkpoints beside it is intact")


@pytest.mark.parametrize("length", [0, 1, 2**24, 2**32, 2**62, 2**63, 2**64 - 1])
def test_lengths_in_the_header_of_tensors(path: Path, length: int) -> None:
    blob = (path / FILES[2]).read_bytes()
    small_checkpoints.replace_tensors(path, struct.pack("<Q", length) + blob[8:])
    tracemalloc.start()
    try:
        refused(path, FILES[2], "it is not a safetensors file")
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_a_sparse_file_is_not_read(path: Path) -> None:
    os.truncate(path / FILES[2], 2**40)
    small_checkpoints.change(path, lambda made: made["files"][0].update(bytes=2**40))
    refused(path, "its files have 1,099,511,627,776")


def test_a_bool_byte_other_than_0_and_1_is_refused(path: Path) -> None:
    blob = (path / FILES[2]).read_bytes()
    header = 8 + struct.unpack("<Q", blob[:8])[0]
    data = blob[header:].replace(b"\x01\x00", b"\x02\x00")
    assert data != blob[header:]
    small_checkpoints.replace_tensors(path, blob[:header] + data)
    refused(path, "tensor value.1 of bool has a byte other than 0 and 1")


def test_more_keys_than_the_files_hold_are_refused(path: Path) -> None:
    def many(made: dict[str, Any]) -> None:
        row = made["keys"][1]
        made["keys"] = [{**row, "key": f"k{number}"} for number in range(100_000)]

    small_checkpoints.change(path, many)
    refused(path, "its arrays need 200,008 bytes")


@pytest.mark.parametrize(
    "config",
    [
        {"name": "sgdd"},
        {"name": 3},
        {"name": "sgd", "learning_rate": -1},
        {"name": "sgd", "learning_rate": "fast"},
        {"name": "sgd", "learning_rate": 10**400},
        {"name": "sgd", "__class__": "object"},
        {"name": "sgd", "lr_mult": 3},
        {},
    ],
)
def test_invalid_optimizer_configs_are_refused(path: Path, config: dict[str, Any]) -> None:
    small_checkpoints.change(
        path, lambda made: made["optimizer"].update(numbers=config, factors=[])
    )
    small_checkpoints.change(path, lambda made: made.update(updater=None))
    drop_updater(path)
    with ncclkv.create("local") as kv:
        with pytest.raises(CheckpointError, match="the optimizer SGD of the checkpoint"):
            kv.load(path)
        assert kv.keys() == []


def drop_updater(path: Path) -> None:
    """Remove the updater from a checkpoint."""
    from safetensors.numpy import save

    arrays = {
        name: a for name, a in small_checkpoints.arrays().items() if not name.startswith("updater")
    }
    small_checkpoints.replace_tensors(path, save(arrays))
