"""Faults of the emulated runtime: injected errors, the last error, lost and stopped devices."""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from typing import Any

import pytest

from tests.nccl.emulated import build, control, fetched
from tests.nccl.emulated.calls import (
    Error,
    Log,
    Things,
    alone,
    code,
    ended,
    made,
    number,
    ok,
)

SOON = 0.3
"""Seconds in which a call that does not hang would have returned."""


def text(name: str, error: int) -> str:
    """Call a function that returns a text."""
    function = getattr(control.library(), name)
    function.restype = ctypes.c_char_p
    return str(function(error).decode())


def last() -> int:
    return code("cudaGetLastError")


# Injected errors


def test_the_nth_call_fails_and_no_other() -> None:
    control.fail("cudaDeviceSynchronize", 3, Error.LAUNCH_FAILURE)
    assert [code("cudaDeviceSynchronize") for _ in range(5)] == [0, 0, 719, 0, 0]
    last()


def test_each_call_from_the_nth_on_fails_until_it_is_taken_back() -> None:
    control.fail("cudaDeviceSynchronize", -2, Error.OUT_OF_MEMORY)
    assert [code("cudaDeviceSynchronize") for _ in range(4)] == [0, 2, 2, 2]
    control.fail("cudaDeviceSynchronize", 0, 0)
    ok("cudaDeviceSynchronize")
    last()


def test_a_call_that_fails_does_nothing() -> None:
    before = control.count("device_blocks")
    with control.failing("cudaMalloc", 1, Error.OUT_OF_MEMORY):
        pointer = ctypes.c_void_p(7)
        assert code("cudaMalloc", ctypes.byref(pointer), 64) == Error.OUT_OF_MEMORY
    assert (pointer.value, control.count("device_blocks")) == (7, before)
    last()


def test_calls_are_counted() -> None:
    before = control.calls("cudaGetDevice")
    for _ in range(3):
        number("cudaGetDevice")
    assert control.calls("cudaGetDevice") == before + 3
    assert control.calls("cudaNeverCalled") == 0


def test_cupy_tells_an_injected_error_in_cudas_words() -> None:
    import cupy

    control.fail("cudaMalloc", 1, Error.ILLEGAL_ADDRESS)
    words = "cudaErrorIllegalAddress: an illegal memory access was encountered"
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match=words):
        cupy.cuda.runtime.malloc(64)
    cupy.cuda.runtime.free(cupy.cuda.runtime.malloc(64))


# The last error of a thread


def test_the_last_error_is_reset_by_its_answer() -> None:
    assert code("cudaSetDevice", 99) == Error.INVALID_DEVICE
    ok("cudaDeviceSynchronize")
    assert code("cudaPeekAtLastError") == Error.INVALID_DEVICE
    assert (last(), last()) == (Error.INVALID_DEVICE, 0)


def test_the_last_error_is_the_threads_own() -> None:
    assert code("cudaSetDevice", 99) == Error.INVALID_DEVICE
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(last()))
    thread.start()
    thread.join()
    assert (seen, last()) == ([0], Error.INVALID_DEVICE)


def test_not_ready_is_no_error(things: Things) -> None:
    stream = things.stream()
    gate = things.gate(stream)
    assert code("cudaStreamQuery", stream) == Error.NOT_READY
    assert last() == 0
    gate.open()


def test_errors_of_the_driver_are_not_the_runtimes_last_error() -> None:
    assert code("cuModuleUnload", 12345) == Error.INVALID_HANDLE
    assert last() == 0


# Lost devices


def loses_its_device() -> None:
    stream = made("cudaStreamCreate")
    event = made("cudaEventCreate")
    ok("cudaEventRecord", event, stream)
    ok("cudaStreamSynchronize", stream)
    control.fail("cudaMemGetInfo", 1, Error.ILLEGAL_ADDRESS, sticky=True)
    one, two = ctypes.c_size_t(), ctypes.c_size_t()
    where = ctypes.byref(one)
    calls: dict[str, tuple[Any, ...]] = {
        "cudaMemGetInfo": (where, ctypes.byref(two)),
        "cudaEventQuery": (event,),
        "cudaStreamQuery": (stream,),
        "cudaStreamSynchronize": (stream,),
        "cudaDeviceSynchronize": (),
        "cudaGetDevice": (where,),
        "cudaSetDevice": (0,),
        "cudaMalloc": (where, 64),
        "cudaFree": (None,),
        "cudaEventDestroy": (event,),
        "cuCtxGetDevice": (where,),
    }
    for _ in range(2):
        for name, arguments in calls.items():
            got = code(name, *arguments)
            assert got == Error.ILLEGAL_ADDRESS, (name, got)
    # They do nothing.
    pointer, before = ctypes.c_void_p(7), control.count("device_blocks")
    assert code("cudaMalloc", ctypes.byref(pointer), 64) == Error.ILLEGAL_ADDRESS
    assert (pointer.value, control.count("device_blocks")) == (7, before)
    # The first one stays, and asking for it does not take it away.
    control.fail("cudaDeviceSynchronize", 1, Error.LAUNCH_FAILURE, sticky=True)
    assert code("cudaDeviceSynchronize") == Error.ILLEGAL_ADDRESS
    assert (last(), last(), code("cudaPeekAtLastError")) == (700, 700, 700)
    # These touch no device.
    assert text("cudaGetErrorName", 700) == "cudaErrorIllegalAddress"
    for name in ("cudaRuntimeGetVersion", "cudaDriverGetVersion", "cuDriverGetVersion"):
        assert number(name) >= 12000


def test_every_call_returns_the_error_by_which_a_device_is_lost() -> None:
    alone(loses_its_device)


def loses_its_device_while_work_waits() -> None:
    stream = made("cudaStreamCreate")
    log = Log()
    control.stop(0)
    log.put(stream, "never")
    control.fail("cudaGetDevice", 1, Error.LAUNCH_FAILURE, sticky=True)
    assert code("cudaGetDevice", ctypes.byref(ctypes.c_int())) == Error.LAUNCH_FAILURE
    control.go_on(0)
    assert code("cudaStreamSynchronize", stream) == Error.LAUNCH_FAILURE
    time.sleep(SOON)
    assert log == []


def test_work_that_waits_does_not_run_on_a_lost_device() -> None:
    alone(loses_its_device_while_work_waits)


# Stopped devices


def test_nothing_runs_on_a_stopped_device_until_it_goes_on(things: Things) -> None:
    stream, log = things.stream(), Log()
    with control.stopped(0):
        log.put(stream, "work")
        time.sleep(SOON)
        assert (log, code("cudaStreamQuery", stream)) == ([], Error.NOT_READY)
    ok("cudaStreamSynchronize", stream)
    assert log == ["work"]


def stops_one_of_two() -> None:
    control.stop(1)
    stream, log = made("cudaStreamCreate"), Log()
    log.put(stream, "work")
    ok("cudaStreamSynchronize", stream)
    assert log == ["work"]


def test_another_device_runs_on() -> None:
    alone(stops_one_of_two, EMULATED_DEVICES="2")


# Faults by environment


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


# Counts of live things


def test_live_memory_is_counted() -> None:
    before = control.counts()
    memory, pinned = made("cudaMalloc", 1000), made("cudaMallocHost", 10)
    after = control.counts()
    assert {kind: after[kind] - before[kind] for kind in after if after[kind] != before[kind]} == {
        "device_blocks": 1,
        "device_bytes": 1000,
        "pinned_blocks": 1,
        "pinned_bytes": 10,
    }
    ok("cudaFree", memory)
    ok("cudaFreeHost", pinned)
    assert control.counts() == before


def test_a_count_of_no_kind_is_negative() -> None:
    count = control.library().emulated_count
    count.restype = ctypes.c_long
    assert (count(-1), count(len(control.KINDS))) == (-1, -1)


# Names of errors


def enumerated(header: str, pattern: str) -> dict[int, str]:
    """Return the errors that an enum of the headers has."""
    found = fetched.headers(fetched.installed().cuda, build.ROOT / "tools")
    (path,) = (folder / header for folder in found if (folder / header).exists())
    matches = re.findall(rf"^\s+({pattern})\s*=\s*(\d+)", path.read_text(), re.MULTILINE)
    return {int(value): name for name, value in matches}


def test_every_error_of_the_runtime_has_its_name_and_a_text() -> None:
    errors = enumerated("driver_types.h", r"cudaSuccess|cudaError\w+")
    assert len(errors) > 100
    unrecognized = "unrecognized error code"
    for error, name in errors.items():
        assert text("cudaGetErrorName", error) == name
        assert text("cudaGetErrorString", error) != unrecognized
    assert text("cudaGetErrorName", 12345) == unrecognized
    assert text("cudaGetErrorString", 12345) == unrecognized


def test_every_error_of_the_driver_has_its_name_and_a_text() -> None:
    errors = enumerated("cuda.h", r"CUDA_SUCCESS|CUDA_ERROR_\w+")
    assert len(errors) > 80
    for error, name in errors.items():
        found = number("cuGetErrorName", error, type=ctypes.c_char_p)
        assert found.decode() == name
        assert number("cuGetErrorString", error, type=ctypes.c_char_p)
    nothing = ctypes.c_char_p(b"untouched")
    for function in ("cuGetErrorName", "cuGetErrorString"):
        assert code(function, 12345, ctypes.byref(nothing)) == Error.INVALID_VALUE
        assert nothing.value is None
