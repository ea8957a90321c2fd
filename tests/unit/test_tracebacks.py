"""Tracebacks of the package's errors: the program's frames alone, from each public function."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv import optimizer, tracebacks
from ncclkv.errors import CommAborted, KVStoreError, OrderMismatch, RankDied, RankLost, UsageError
from ncclkv.testing import run_ranks
from tests.harness.source import ROOT

PACKAGE = f"{Path(ncclkv.__file__).parent}/"
"""Beginning of the package's files: the clone's folder may have the package's name, too."""

SHOWN = 0 if sys.version_info >= (3, 11) else 1
"""Frames of the package that an error shows: in Python 3.10 that of the public function."""

ONES = np.ones(3)


def enter(block: Any, *calls: Callable[[], object]) -> None:
    with block:
        for call in calls:
            call()


def set_rate(rate: Any) -> None:
    optimizer.SGD().learning_rate = rate


def set_torchs_name() -> None:
    optimizer.SGD().lr = 0.1


def schedule(num_update: int) -> float:
    return -1.0


STORE: dict[str, Callable[[Any], object]] = {
    "init": lambda kv: kv.init("w", ONES),
    "reset": lambda kv: kv.reset("x", ONES),
    "broadcast": lambda kv: kv.broadcast("w", ONES, np.ones(4)),
    "push": lambda kv: kv.push("x", ONES),
    "pull": lambda kv: kv.pull("x"),
    "pushpull": lambda kv: kv.pushpull("x", ONES),
    "value": lambda kv: kv.value("x"),
    "grad_view": lambda kv: kv.grad_view("x"),
    "spec": lambda kv: kv.spec("x"),
    "wait": lambda kv: kv.wait("x"),
    "allreduce": lambda kv: kv.allreduce("x"),
    "allgather": lambda kv: kv.allgather("x"),
    "set_updater": lambda kv: kv.set_updater(3),
    "set_optimizer": lambda kv: kv.set_optimizer("sgd"),
    "save": lambda kv: kv.save("/dev/null/x"),
    "load": lambda kv: kv.load("/dev/null/x"),
    "save_optimizer_states": lambda kv: kv.save_optimizer_states("x"),
    "load_optimizer_states": lambda kv: kv.load_optimizer_states("x"),
    "row_sparse_pull": lambda kv: kv.row_sparse_pull("w"),
    "set_gradient_compression": lambda kv: kv.set_gradient_compression({}),
    "is_capable": lambda kv: kv.is_capable("x"),
    "barrier": lambda kv: enter(kv.uneven(), kv.barrier),
    "close": lambda kv: enter(kv.group(), kv.close),
    "capture": lambda kv: enter(kv.capture()),
    "uneven": lambda kv: enter(kv.group(), lambda: enter(kv.uneven())),
    "begin of overlap": lambda kv: enter(kv.overlap(["x"])),
    "end of overlap": lambda kv: enter(kv.overlap()),
    "push in a group": lambda kv: enter(kv.group(), lambda: kv.push("x", ONES)),
}

OTHERS: dict[str, Callable[[], object]] = {
    "create": lambda: ncclkv.create("loacl"),
    "arguments of create": lambda: ncclkv.create("local", buket_bytes=0),  # type: ignore[call-overload]
    "options of create": lambda: ncclkv.create("local", root=-1),
    "nccl": lambda: ncclkv.create("nccl"),
    "register": lambda: ncclkv.KVStoreBase.register(3),  # type: ignore[type-var]
    "optimizer": lambda: optimizer.SGD(learning_rate=-1),
    "arguments of an optimizer": lambda: optimizer.Adam(beta=0.5),  # type: ignore[call-arg]
    "create of an optimizer": lambda: optimizer.create("sgdd"),
    "register of an optimizer": lambda: optimizer.register(int),  # type: ignore[type-var]
    "schedule": lambda: optimizer.FactorScheduler(step=0),
    "number": lambda: set_rate("high"),
    "number of a schedule": lambda: optimizer.SGD(lr_scheduler=schedule).learning_rate,
    "attribute": set_torchs_name,
    "factors": lambda: optimizer.SGD().set_lr_mult(3),  # type: ignore[arg-type]
    "trainer": lambda: ncclkv.Trainer({}, "sgd"),
    "step": lambda: ncclkv.Trainer({"w": np.ones(2)}, "sgd", kvstore=None).step(1),
    "rate of a trainer": lambda: ncclkv.Trainer({"w": ONES}, "sgd").set_learning_rate(-1),
    "world": lambda: ncclkv.comm.world(-1),
    "allreduce": lambda: ncclkv.comm.world().allreduce(ONES, np.ones(2)),
    "reduce": lambda: ncclkv.comm.world().reduce(ONES, ONES, root=2),
    "broadcast": lambda: ncclkv.comm.world().broadcast(ONES, root=2),
    "split": lambda: ncclkv.comm.world().split("red"),  # type: ignore[arg-type]
    "run_ranks": lambda: run_ranks(0, int),
    "rank": lambda: run_ranks(2, lambda: ncclkv.create("dist").pull("x")),
    "rank that waits": lambda: run_ranks(2, barrier_of_one, timeout=0.1),
}


def barrier_of_one() -> None:
    world = ncclkv.comm.world()
    if world.rank:
        world.barrier().wait()


def frames(error: BaseException) -> tuple[list[str], list[str]]:
    """Return the functions of an error's traceback: those of the package, and the others."""
    inside: list[str] = []
    outside: list[str] = []
    for each in traceback.extract_tb(error.__traceback__):
        (inside if each.filename.startswith(PACKAGE) else outside).append(each.name)
    return inside, outside


def check_frames(error: BaseException, functions: int = 1) -> None:
    """Check that an error has left so many public functions without their frames."""
    inside, outside = frames(error)
    assert len(inside) <= functions * SHOWN, inside
    assert "contextlib" not in "".join(traceback.format_tb(error.__traceback__))
    assert outside
    assert error.__cause__ is None


@pytest.mark.parametrize("call", STORE)
def test_verbs_and_blocks_show_the_program_alone(call: str) -> None:
    kv = ncclkv.create("local")
    kv.init("w", np.zeros(3))
    with pytest.raises(KVStoreError) as caught:
        STORE[call](kv)
    check_frames(caught.value)


@pytest.mark.parametrize("call", OTHERS)
def test_functions_and_constructors_show_the_program_alone(call: str) -> None:
    with pytest.raises(KVStoreError) as caught:
        OTHERS[call]()
    check_frames(caught.value, 2 if call.startswith("rank") else 1)


def store_with(updater: Any) -> Any:
    kv = ncclkv.create("local")
    kv.init("w", np.zeros(3))
    kv.set_updater(updater)
    return kv


def test_frames_of_the_programs_functions_are_shown() -> None:
    def fails(key: str, grad: Any, stored: Any) -> None:
        raise ZeroDivisionError("mine")

    def calls_the_store(key: str, grad: Any, stored: Any) -> None:
        kv.push("w", ONES)

    kv = store_with(fails)
    with pytest.raises(ZeroDivisionError) as caught:
        kv.push("w", ONES)
    inside, outside = frames(caught.value)
    assert len(inside) <= 2 * SHOWN, inside
    assert outside[-1] == "fails"
    kv = store_with(calls_the_store)
    with pytest.raises(UsageError, match="inside an updater") as refused:
        kv.push("w", ONES)
    inside, outside = frames(refused.value)
    assert len(inside) <= 2 * SHOWN, inside
    assert outside[-1] == "calls_the_store"


def test_an_error_of_a_rank_shows_the_ranks_frames() -> None:
    def fails() -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError) as caught:
        run_ranks(2, fails)
    inside, outside = frames(caught.value)
    assert len(inside) <= 2 * SHOWN, inside
    assert outside[-1] == "fails"


def test_an_error_that_passes_a_block_keeps_its_frames() -> None:
    def fails() -> None:
        raise ZeroDivisionError("mine")

    kv = ncclkv.create("local")
    with pytest.raises(ZeroDivisionError) as caught, kv.group():
        fails()
    assert frames(caught.value)[1][-1] == "fails"


def test_errors_of_others_keep_their_frames() -> None:
    def rate(num_update: int) -> float:
        raise ZeroDivisionError("mine")

    kv = ncclkv.create("local")
    kv.init("w", np.zeros(3))
    kv.set_optimizer(optimizer.SGD())
    kv.optimizer.lr_scheduler = rate
    with pytest.raises(ZeroDivisionError) as caught:
        kv.push("w", ONES)
    inside, outside = frames(caught.value)
    assert "push" in inside
    assert outside[-1] == "rate"


def test_all_frames_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLKV_TRACEBACK", "full")
    kv = ncclkv.create("local")
    with pytest.raises(UsageError) as caught:
        kv.pull("x")
    assert "pull" in frames(caught.value)[0]
    text = tracebacks.text(caught.value)
    assert "NCCLKV_TRACEBACK" not in text
    with pytest.raises(ZeroDivisionError) as foreign:
        run_ranks(1, lambda: 1 / 0)
    assert "run_ranks" in frames(foreign.value)[0]


def test_the_text_of_an_uncaught_error_names_the_variable() -> None:
    with pytest.raises(UsageError) as caught:
        ncclkv.create("loacl")
    first, hint, *_, last = tracebacks.text(caught.value).splitlines()
    assert first == "Traceback (most recent call last):"
    assert "NCCLKV_TRACEBACK=full" in hint
    assert last.startswith("ncclkv.errors.UsageError: store 'loacl' is unknown")
    assert "NCCLKV_TRACEBACK" not in tracebacks.text(ValueError("of another"))


def test_signatures_and_documentation_stay() -> None:
    parameters = inspect.signature(ncclkv.KVStore.init).parameters
    assert [*parameters] == ["self", "key", "value", "op"]
    assert [*inspect.signature(ncclkv.Trainer.step).parameters][1:] == [
        "batch_size",
        "ignore_stale_grad",
    ]
    assert ncclkv.KVStore.init.__name__ == "init"
    assert "first value" in str(ncclkv.KVStore.init.__doc__)
    assert [*inspect.signature(optimizer.FactorScheduler).parameters][:2] == ["step", "factor"]


# Causes


@contextmanager
def broken_off() -> Iterator[None]:
    """Raise an error of the package from the block's error."""
    try:
        yield
    except ValueError as error:
        raise CommAborted("rank 0 of 2: interrupted") from error


def raised_again(error: BaseException) -> BaseException:
    """Return an error as it leaves a public function that raises it."""

    @tracebacks.public
    def verb() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        verb()
    return caught.value


def test_a_cause_in_the_program_is_shown() -> None:
    def updater() -> None:
        raise ValueError("in the program")

    with pytest.raises(CommAborted) as caught, broken_off():
        updater()
    text = tracebacks.text(raised_again(caught.value))
    assert "ValueError: in the program" in text
    assert "in updater" in text
    assert text.splitlines()[-1].endswith("CommAborted: rank 0 of 2: interrupted")


def test_a_cause_that_was_not_raised_is_shown() -> None:
    class Refused(UsageError):
        pass

    def refuse(*_: Any) -> None:
        raise Refused("refused") from ValueError("why")

    with ncclkv.create("local") as kv:
        kv.init("w", ONES)
        kv.set_updater(refuse)
        with pytest.raises(Refused) as caught:
            kv.push("w", ONES)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_cause_inside_the_package_is_left_out() -> None:
    inner, outer = UsageError("inside"), CommAborted("rank 0 of 2: outside")
    outer.__context__ = outer.__cause__ = inner
    text = tracebacks.text(raised_again(outer))
    assert "inside ncclkv" in text
    assert "UsageError" not in text
    assert text.endswith("ncclkv.errors.CommAborted: rank 0 of 2: outside\n")


def test_the_error_that_the_program_handles_stays_the_context() -> None:
    def read() -> None:
        try:
            int("three")
        except ValueError:
            ncclkv.create("local").pull("three")

    with pytest.raises(KVStoreError) as caught:
        read()
    assert isinstance(caught.value.__context__, ValueError)
    assert "three" in "".join(traceback.format_exception(caught.value))


# Displays

PROGRAM = """
import ncclkv
def read(name):
    kv = ncclkv.create("local")
    return kv.pull(name)
def test():
    read("w")
"""


def displayed(tmp_path: Path, *command: str, more: str = "") -> list[str]:
    """Return the places that a program's output shows of its error."""
    program = tmp_path / "test_program.py"
    program.write_text(PROGRAM + more)
    ended = subprocess.run(
        [sys.executable, *command, str(program)],
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    output = ended.stdout + ended.stderr
    assert "KeyNotInitialized: rank 0 of 1: key 'w'" in output
    found = [line for line in output.splitlines() if ".py" in line and ":" in line]
    return [line for line in found if "test_program.py" not in line and "FAILED" not in line]


def test_plain_python_shows_the_program_alone(tmp_path: Path) -> None:
    others = displayed(tmp_path, more="test()\n")
    assert len([line for line in others if "File" in line]) <= SHOWN, others


def test_pytest_shows_the_program_alone(tmp_path: Path) -> None:
    others = displayed(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert len([line for line in others if PACKAGE in line]) <= SHOWN, others


def test_a_thread_shows_the_program_alone(tmp_path: Path) -> None:
    others = displayed(tmp_path, more="import threading\nthreading.Thread(target=test).start()\n")
    assert [line for line in others if "threading.py" not in line][SHOWN:] == [], others


# Errors that follow


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RankLost("rank 0 of 2: rank 1 left"), True),
        (RankDied("rank 0 of 2: rank 1 was killed by signal 9"), True),
        (OrderMismatch("rank 0 of 3: rank 1 left with OrderMismatch: the ranks differ"), True),
        (OrderMismatch("rank 0 of 3: rank 1 found: rank 1 of 3: the ranks differ"), True),
        (OrderMismatch("rank 0 of 3: the ranks differ in call 8 of this store"), False),
        (ValueError("mine"), False),
    ],
)
def test_errors_that_follow_another_rank(error: Exception, expected: bool) -> None:
    assert tracebacks.follows(error) == expected


# The rule

CUTS = re.compile(r"PublicBlock\(|except Exception as error:\n +trim\(error\)\n +raise\n")

CANNOT_FAIL = {
    "KVStore.keys",
    "Communicator.abort",
    "Communicator.allocate",
    "Communicator.check",
    "Communicator.keep_alive",
    "Communicator.left_ranks",
    "Communicator.lend",
    "Communicator.node_shared",
    "Communicator.on_comm_stream",
    "Communicator.reported",
    "Communicator.rolling_back_node_shared",
    "Communicator.sync_stream",
    "Communicator.synchronize",
    "Communicator.use_device",
}
"""Public methods that raise no error of the package, or that stores alone call."""


@pytest.mark.parametrize("owner", [ncclkv.KVStore, ncclkv.Communicator, ncclkv.Trainer])
def test_every_public_method_cuts_off_its_frames(owner: type) -> None:
    """A method is `public`, returns a `PublicBlock`, or has the except clause itself."""
    lacking = []
    for name, member in vars(owner).items():
        if name.startswith("_") or not inspect.isfunction(member):
            continue
        abstract = getattr(member, "__isabstractmethod__", False)
        cuts = hasattr(member, "__wrapped__") or CUTS.search(inspect.getsource(member))
        if not (abstract or cuts or f"{owner.__name__}.{name}" in CANNOT_FAIL):
            lacking.append(name)
    assert lacking == [], "make these public, by ncclkv.tracebacks"
