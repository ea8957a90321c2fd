"""Updates of a trainer without an optimizer on its store, and their files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import CheckpointError
from ncclkv.optimizer import SGD
from ncclkv.trainer.local_updates import LocalUpdates


def stepped(updates: LocalUpdates, value: np.ndarray) -> np.ndarray:
    """Return the value after one update by a gradient of ones."""
    updates.update(["w"], [np.ones_like(value)], [value])
    return value


def test_states_and_numbers_are_restored(tmp_path: Path) -> None:
    sgd = SGD(learning_rate=0.5, momentum=0.5)
    sgd.lr_mult["w"] = 2.0
    updates, value = LocalUpdates(sgd), np.zeros(3)
    stepped(updates, value)
    updates.save(tmp_path, None)
    other = SGD(learning_rate=0.25, momentum=0.5)
    resumed = LocalUpdates(other)
    resumed.load(tmp_path)
    assert other.config() == sgd.config()
    np.testing.assert_array_equal(stepped(resumed, value.copy()), stepped(updates, value))


def test_another_optimizer_is_refused(tmp_path: Path) -> None:
    updates = LocalUpdates(SGD(learning_rate=0.5, momentum=0.5))
    stepped(updates, np.zeros(3))
    updates.save(tmp_path, None)
    with pytest.raises(CheckpointError, match=r"SGD\(.*has \[\] and .updates.; load the state of"):
        LocalUpdates(SGD(learning_rate=0.5)).load(tmp_path)


def test_a_refused_load_leaves_states_and_numbers(tmp_path: Path) -> None:
    saved = LocalUpdates(SGD(learning_rate=0.5, momentum=0.25))
    stepped(saved, np.zeros(3))
    saved.save(tmp_path, None)
    sgd, twin = (SGD(learning_rate=0.125, momentum=0.5) for _ in range(2))
    updates, value = LocalUpdates(sgd), np.zeros(3)
    other, expected = LocalUpdates(twin), np.zeros(3)
    for each, array in ((updates, value), (other, expected)):
        stepped(each, array)
        stepped(each, array)
    with pytest.raises(CheckpointError) as caught:
        updates.load(tmp_path)
    words = (
        *(f"the hyperparameters in {tmp_path} are not those", "momentum of SGD("),
        "cannot become 0.25",
    )
    assert all(word in str(caught.value) for word in words), caught.value
    assert (sgd.config(), sgd.num_update) == (twin.config(), twin.num_update)
    np.testing.assert_array_equal(stepped(updates, value), stepped(other, expected))


def test_a_checkpoint_of_values_is_refused(tmp_path: Path) -> None:
    with ncclkv.create("local") as kv:
        kv.set_updater(LocalUpdates(SGD())._updater)
        kv.save(tmp_path, extra="mine")
    with pytest.raises(CheckpointError, match=r"was not written by save_states of a trainer"):
        LocalUpdates(SGD()).load(tmp_path)


def test_a_failure_of_rank_0_is_raised_on_every_rank(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")

    def work() -> str:
        with ncclkv.create("threads") as kv:
            with pytest.raises(CheckpointError) as caught:
                LocalUpdates(SGD()).save(blocked, kv)
            return str(caught.value)

    texts = ncclkv.testing.run_ranks(3, work)
    assert str(blocked) in texts[0]
    assert set(texts[1:]) == {
        f"save_states: rank 0 could not write {blocked}; see its error",
    }
