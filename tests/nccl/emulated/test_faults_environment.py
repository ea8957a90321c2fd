"""Layer 3b: faults set by environment variables."""

from __future__ import annotations

import os
import threading
import time

import pytest

from tests.nccl.emulated.calls import Log, alone, code, ended, made, number, ok


def says_what_fails() -> None:
    print([code("cudaDeviceSynchronize") for _ in range(4)], code("cudaFree", None))


@pytest.mark.parametrize(
    ("faults", "codes"),
    [
        ("cudaDeviceSynchronize:2:719", "[0, 719, 0, 0] 0"),
        ("cudaDeviceSynchronize:-3:700", "[0, 0, 700, 700] 0"),
        ("cudaDeviceSynchronize:2:700:sticky", "[0, 700, 700, 700] 700"),
        ("cudaDeviceSynchronize:1:2,cudaFree:1:1", "[2, 0, 0, 0] 1"),
        ("", "[0, 0, 0, 0] 0"),
    ],
)
def test_faults_come_from_the_environment(faults: str, codes: str) -> None:
    assert alone(says_what_fails, EMULATED_FAULTS=faults).strip() == codes


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "PMI_RANK"])
@pytest.mark.parametrize(("rank", "codes"), [("0", "[0, 0, 0, 0] 0"), ("1", "[0, 719, 0, 0] 0")])
def test_faults_are_for_one_rank(variable: str, rank: str, codes: str) -> None:
    others = dict.fromkeys(("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"), "")
    set_here = {**others, variable: rank, "EMULATED_RANK_FAULTS": "1:cudaDeviceSynchronize:2:719"}
    assert alone(says_what_fails, **set_here).strip() == codes


@pytest.mark.parametrize(
    "faults",
    ["cudaFree", "cudaFree:1", "cudaFree:x:1", "cudaFree:1:x", "cudaFree:1:2:maybe", "a:1:2:3:4"],
)
def test_faults_that_cannot_be_read_end_the_process_in_words(faults: str) -> None:
    process = ended(says_what_fails, EMULATED_FAULTS=faults)
    assert process.returncode == 2
    words = f"EMULATED_FAULTS: '{faults}' is none of FUNCTION:NTH:CODE[:sticky]"
    assert words in process.stderr


def hangs_in_the_second_call() -> None:
    ok("cudaDeviceSynchronize")
    thread = threading.Thread(target=code, args=("cudaDeviceSynchronize",), daemon=True)
    thread.start()
    thread.join(2)
    ok("cudaFree", None)
    print("hangs" if thread.is_alive() else "returns", flush=True)
    os._exit(0)


@pytest.mark.parametrize(("nth", "what"), [(2, "hangs"), (3, "returns")])
def test_a_rank_hangs_inside_a_call(nth: int, what: str) -> None:
    fault = f"cudaDeviceSynchronize:{nth}:hang"
    assert alone(hangs_in_the_second_call, EMULATED_FAULTS=fault).strip() == what


def asks_whether_work_runs() -> None:
    stream, log = made("cudaStreamCreate"), Log()
    ok("cudaGetLastError")
    log.put(stream, "work")
    ok("cudaStreamSynchronize", stream)
    number("cudaGetDevice")
    log.put(stream, "more work")
    deadline = time.monotonic() + 2
    while len(log) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    print(log, flush=True)
    os._exit(0)


def test_a_device_stops_at_a_call() -> None:
    assert alone(asks_whether_work_runs).strip() == "['work', 'more work']"
    stopped = alone(asks_whether_work_runs, EMULATED_FAULTS="cudaGetDevice:1:stop")
    assert stopped.strip() == "['work']"
