"""The training example as real jobs: exit status, output and weights."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.harness import digits
from tests.harness.extent import some_or_all

pytest.importorskip("sklearn", reason="scikit-learn is absent; the extra `train` installs it")
pytest.importorskip("tqdm", reason="tqdm is absent; the extra `train` installs it")

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ["--kvstore", "--update-on", "--optimizer", "--lr", "--epochs", "--batch-size", "--seed"]
OPTIONS += ["--schedule", "--checkpoint", "--resume"]

# 1500 images in batches of 499: the last batch has three images, and a fourth rank gets none of
# them.
SAVE_WEIGHTS = """
import sys, numpy, ncclkv, train
options = train.parse(["--epochs", "3", "--batch-size", "499", "--update-on", sys.argv[1]])
rng = numpy.random.default_rng(options.seed)
images, labels, _, _ = train.digits(rng)
with ncclkv.create("dist", update_on=options.update_on) as kv:
    weights, _ = train.train(kv, options, rng, images, labels)
    if kv.rank == 0:
        numpy.savez(sys.argv[2], *weights, ranks=kv.num_workers)
"""

# A program that trains with some options, and writes the weights to a file.
TRAIN_AND_WRITE = """
import sys, numpy, ncclkv, train
options = train.parse(sys.argv[2:])
rng = numpy.random.default_rng(options.seed)
images, labels, _, _ = train.digits(rng)
with ncclkv.create("dist", update_on=options.update_on) as kv:
    weights, _ = train.train(kv, options, rng, images, labels)
    if kv.rank == 0:
        numpy.savez(sys.argv[1], *weights)
"""

# A program that flips the sign of a zero: a comparison of numbers would not find it.
FLIP_ONE_BIT = """
import sys, train
right = train.train
def wrong(kv, *rest):
    weights, speed = right(kv, *rest)
    weights[0][0, 0] = -0.0 if kv.rank == 1 else 0.0
    return weights, speed
train.train = wrong
sys.exit(train.main([]))
"""


def started(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the root folder, for half a minute at most."""
    return subprocess.run(
        ["timeout", "-k", "5", "30", *command],
        cwd=ROOT,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def job(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Start Python with `arguments` on so many ranks."""
    return started(["launch/local.sh", "-n", str(ranks), *arguments])


def accuracy(output: str) -> float:
    """Return the printed percentage."""
    found = re.search(r"^test accuracy: ([0-9.]+)%$", output, re.MULTILINE)
    assert found, output
    return float(found[1])


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose package sklearn has the digits alone."""
    folder = tmp_path_factory.mktemp("digits")
    digits.copy(folder)
    return folder


@pytest.fixture
def copied_digits(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make jobs read the digits from a file."""
    monkeypatch.setenv("PYTHONPATH", str(copied))


@pytest.fixture
def no_extras(tmp_path: Path) -> dict[str, str]:
    """Make an environment in which imports of MPI, scikit-learn and tqdm fail."""
    for name in "mpi4py", "sklearn", "tqdm":
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} was imported')\n")
    return {"PYTHONPATH": str(tmp_path)}


@pytest.mark.usefixtures("copied_digits")
@pytest.mark.parametrize("update_on", some_or_all(["every_rank"], ["every_rank", "root"]))
def test_four_ranks_learn_the_digits(update_on: str) -> None:
    begin = time.monotonic()
    run = job(4, "train.py", "--update-on", update_on)
    seconds = time.monotonic() - begin
    assert run.returncode == 0, run.stdout + run.stderr
    assert accuracy(run.stdout) >= 97
    assert seconds < 20
    _, speed, weights = run.stdout.splitlines()  # three lines: only rank 0 prints
    assert re.fullmatch(r"speed: [0-9,]+ examples a second on 4 rank\(s\)", speed)
    assert weights == "weights: bit-identical on all ranks"
    assert run.stderr.count(" 0/30 [") == 1, "one bar: rank 0 alone shows it"
    assert "30/30" in run.stderr


@pytest.mark.usefixtures("copied_digits")
def test_a_network_that_has_not_learned_fails_the_job() -> None:
    run = job(2, "train.py", "--lr", "0", "--epochs", "1")
    assert accuracy(run.stdout) < 95
    assert "failed: the accuracy is below 95%; give more --epochs" in run.stdout
    assert "bit-identical" in run.stdout
    assert run.returncode != 0


@pytest.mark.usefixtures("copied_digits")
def test_weights_that_differ_in_one_bit_fail_the_job() -> None:
    run = job(2, "-c", FLIP_ONE_BIT)
    assert accuracy(run.stdout) >= 95
    assert "weights: DIFFERENT between ranks" in run.stdout
    assert run.returncode != 0


@pytest.mark.limit(120)
@pytest.mark.usefixtures("copied_digits")
@pytest.mark.parametrize("update_on", some_or_all(["root"], ["every_rank", "root"]))
def test_any_number_of_ranks_reaches_the_same_weights(update_on: str, tmp_path: Path) -> None:
    saved = {}
    for ranks in 1, 2, 4:
        path = tmp_path / f"{ranks}.npz"
        run = job(ranks, "-c", SAVE_WEIGHTS, update_on, str(path))
        assert run.returncode == 0, run.stdout + run.stderr
        with np.load(path) as arrays:
            saved[ranks] = dict(arrays)
        assert saved[ranks]["ranks"] == ranks
    assert abs(saved[1]["arr_1"]).max() > 0.01, "the biases began at zero and have moved"
    for ranks in 2, 4:
        for index in range(4):
            np.testing.assert_allclose(
                saved[ranks][f"arr_{index}"], saved[1][f"arr_{index}"], rtol=0, atol=1e-5
            )


def bits(path: Path, *options: str, **variables: str) -> list[bytes]:
    """Return the bits of the final weights of three ranks."""
    command = ["launch/local.sh", "-n", "3", "-c", TRAIN_AND_WRITE, str(path), *options]
    run = started(command, **variables)
    assert run.returncode == 0, run.stdout + run.stderr
    with np.load(path) as arrays:
        return [arrays[name].tobytes() for name in sorted(arrays)]


@pytest.mark.limit(120)
@pytest.mark.usefixtures("copied_digits")
@pytest.mark.parametrize("update_on", some_or_all(["every_rank"], ["every_rank", "root"]))
def test_a_resumed_run_ends_with_the_same_bits(update_on: str, tmp_path: Path) -> None:
    directory, path = str(tmp_path / "checkpoints"), tmp_path / "weights.npz"
    saved = ["--checkpoint", directory, "--resume"]
    whole = bits(path, "--epochs", "4", "--update-on", update_on)
    assert bits(path, "--epochs", "2", "--update-on", update_on, *saved) != whole
    assert sorted(name[:14] for name in os.listdir(directory)) == [
        "step-000000001",
        "step-000000002",
    ]
    # The environment of a launcher that restarts; and once more, after the last step.
    again = {"NCCLKV_CHECKPOINT": directory, "NCCLKV_RESTART": "1"}
    assert bits(path, "--epochs", "4", "--update-on", update_on, **again) == whole
    assert bits(path, "--epochs", "4", "--update-on", update_on, *saved) == whole


@pytest.mark.limit(120)
@pytest.mark.usefixtures("copied_digits")
@pytest.mark.parametrize("optimizer", some_or_all(["adam"], ["sgd", "adam", "lamb"]))
def test_a_run_resumed_on_other_numbers_of_ranks_agrees(optimizer: str, tmp_path: Path) -> None:
    """The sums of other numbers of ranks are rounded in another order, for 96 steps."""

    def train(ranks: int, epochs: int, *more: str) -> list[np.ndarray]:
        path, options = tmp_path / "weights.npz", ["--optimizer", optimizer, *more]
        command = ["-c", TRAIN_AND_WRITE, str(path), "--epochs", str(epochs), *options]
        run = job(ranks, *command)
        assert run.returncode == 0, run.stdout + run.stderr
        with np.load(path) as arrays:
            return [arrays[name] for name in sorted(arrays)]

    saved = ["--update-on", "sharded", "--checkpoint", str(tmp_path / "checkpoints"), "--resume"]
    train(4, 1, *saved)
    train(2, 3, *saved)
    resumed = train(3, 5, *saved)
    for expected, weights in zip(train(4, 5), resumed, strict=True):
        np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-5)


def test_without_its_extra_the_program_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sklearn.py").write_text("raise ImportError('absent')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = job(2, "train.py")
    advice = "train.py needs the extra `train` (absent): pip install 'ncclkv[train]'"
    assert (run.returncode, run.stderr.count(advice)) == (1, 2), run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.usefixtures("copied_digits")
def test_resuming_needs_a_directory() -> None:
    run = job(1, "train.py", "--resume")
    assert run.returncode != 0
    assert "no directory was given" in run.stderr


def test_help_needs_neither_mpi_nor_extras(no_extras: dict[str, str]) -> None:
    run = started([sys.executable, "train.py", "--help"], **no_extras)
    assert run.returncode == 0, run.stderr
    for option in OPTIONS:
        assert option in run.stdout
    assert run.stdout.count("(default: ") == len(OPTIONS)


@pytest.mark.parametrize(
    "store", some_or_all(["device", "dist"], ["local", "device", "threads", "dist"])
)
def test_one_rank_needs_no_mpi(store: str, copied: Path, tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('mpi4py was imported')\n")
    # With `dist` the digits are those of scikit-learn itself.
    path = tmp_path if store == "dist" else f"{tmp_path}{os.pathsep}{copied}"
    run = started([sys.executable, "train.py", "--kvstore", store], PYTHONPATH=str(path))
    assert run.returncode == 0, run.stdout + run.stderr
    assert accuracy(run.stdout) >= 97
    assert "on 1 rank(s)" in run.stdout


@pytest.mark.usefixtures("copied_digits")
def test_a_store_that_does_not_exist_fails_every_rank() -> None:
    run = job(2, "train.py", "--kvstore", "dits")
    assert run.returncode != 0
    assert "test accuracy" not in run.stdout
    assert re.search("UsageError: .*dits", run.stderr), run.stderr
