"""Run the whole test suite: pytest in this process's Python, then in jobs of 1 to 4 ranks.

``python -m tests.run`` runs all that need no GPU, ``python -m tests.run unit ranks-3`` some,
``python -m tests.run gpu`` all that need one, and ``python -m tests.run emulated`` these in layer
3b, on an emulated device; ``emulated-few`` is a part of them.  Each run has a time limit of its
own; the other runs go on after a run that fails or is stopped.  A test that ends its process, past
its own limit or by a crash, fails alone: pytest is started again behind it.  The last lines give
each run's outcome, its time, and the CPU time of its processes.  The exit code is 0 only when all
runs pass.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.harness import leftovers, rounds
from tests.harness.side_by_side import private, shares, side_by_side
from tests.harness.slow import stretched
from tests.nccl import gpu
from tests.suite import GROUPS, Run, by_name, suite

ROOT = Path(__file__).resolve().parent.parent
GRACE = 10.0
"""Seconds from a signal that asks a run to end to the signal that kills it."""


class Execution:
    """Runs that are executed, each in its own process group, and can be stopped together.

    Parameters
    ----------
    together : bool
        Whether runs go side by side: the output of each is then kept, and printed at its end.
    """

    def __init__(self, together: bool = False) -> None:
        self._together = together
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._stopped = threading.Event()

    def __call__(self, run: Run) -> str:
        """Execute a run and return its outcome, which begins with "passed" if it passed."""
        if self._stopped.is_set():
            return "FAILED: not started"
        if not self._together:
            return self._execute(run, None)
        print(f"===== {run.name} begins", flush=True)
        with tempfile.TemporaryFile() as output:
            result = self._execute(run, output)
            output.seek(0)
            show(output.read())
        return result

    def stop(self) -> None:
        """End all runs that have begun, and begin no other run."""
        self._stopped.set()
        for process in list(self._processes):
            end(process)

    def _execute(self, run: Run, output: IO[bytes] | None) -> str:
        """Execute a run; a test that ends its process is lost alone, within the same limit."""
        # Beside others a run has a part of the cores.
        limit = stretched(run.limit) * (2 if self._together else 1)
        tell(f"\n===== {run.name}: {' '.join(run.command)} (at most {limit:g} s)", output)
        begin, used = time.monotonic(), Used()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            try:
                ended = rounds.run(
                    run.command,
                    lambda command: self._start(
                        command, begin + limit - time.monotonic(), folder, output, used
                    ),
                    lambda line: tell(f"===== {run.name}: {line}", output),
                )
            except subprocess.TimeoutExpired:
                return f"FAILED: stopped after {limit:g} s"
        seconds = time.monotonic() - begin
        if ended.lost:
            return f"FAILED: lost {', '.join(ended.lost)} in {seconds:.0f} s"
        how = "passed" if ended.code == 0 else f"FAILED with exit code {ended.code}"
        return f"{how} in {seconds:.0f} s, CPU {used.seconds:.0f} s"

    def _start(
        self,
        command: Sequence[str],
        limit: float,
        folder: str,
        output: IO[bytes] | None,
        used: Used,
    ) -> int:
        """Run a command to its end and return its exit code; past its limit it is ended."""
        if self._stopped.is_set():
            raise subprocess.TimeoutExpired(command, 0)
        # A session of its own, so that all the processes it starts can be ended together.
        process = subprocess.Popen(
            private(command) if self._together else command,
            cwd=ROOT,
            env=environment({"TMPDIR": folder} if output else {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
        )
        self._processes.add(process)
        try:
            return used.wait(process, limit)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            end(process)
            raise
        finally:
            self._processes.discard(process)


class Used:
    """CPU time of processes and of their children.

    Attributes
    ----------
    seconds : float
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def wait(self, process: subprocess.Popen[bytes], limit: float) -> int:
        """Return a process's exit code at its end, and add its CPU time to the seconds."""
        last = time.monotonic() + limit
        while True:
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                self.seconds += usage.ru_utime + usage.ru_stime
                process.returncode = os.waitstatus_to_exitcode(status)
                return process.returncode
            if time.monotonic() > last:
                raise subprocess.TimeoutExpired(process.args, limit)
            time.sleep(0.05)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a run, in which Python starts fast: jobs start hundreds of them."""
    # Without its compiled files each Python would compile the package and its tests anew.
    kept = {name: os.environ[name] for name in os.environ if name != "PYTHONDONTWRITEBYTECODE"}
    # Threads of OpenBLAS that wait for work keep the cores busy.  UCX's hooks of memory, which only
    # networks with RDMA need, take 30 ms of each rank's start, and its search for networks 7 ms.
    fast = {"OPENBLAS_NUM_THREADS": "1", "UCX_MEM_EVENTS": "n", "UCX_TLS": "posix,cma,self"}
    return {**fast, **kept, "VENV": sys.prefix, **more}


def execute(run: Run) -> str:
    """Execute a run that prints at once, and return its outcome."""
    return Execution()(run)


def tell(line: str, output: IO[bytes] | None) -> None:
    """Print a line, or write it between the lines of a command whose output is kept."""
    if output is None:
        print(line, flush=True)
    else:
        output.write(f"{line}\n".encode())
        output.flush()


def show(text: bytes) -> None:
    """Print the kept output of a run."""
    with _PRINTING:
        print(text.decode(errors="replace"), end="", flush=True)


_PRINTING = threading.Lock()


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process group by SIGTERM, on which mpirun ends its ranks, and then by SIGKILL."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        os.killpg(process.pid, signum)
        try:
            process.wait(GRACE)
            return
        except subprocess.TimeoutExpired:
            continue


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.run", description=__doc__)
    parser.add_argument("name", nargs="*", help="a run, or a group of them")
    parser.add_argument(
        "--shares", type=int, default=shares(), help="of the machine, %(default)s here; 0: no two"
    )
    options = parser.parse_args(arguments)
    names: list[str] = options.name
    if names == ["gpu"] and (lacking := gpu.missing()):
        print(f"no test of a GPU can run: {lacking}")
        return int(gpu.required())
    for name in set(names) & set(GROUPS):
        names = [each for each in names if each != name] + [run.name for run in GROUPS[name]()]
    runs = suite() + (by_name() if names else [])
    unknown = set(names) - {run.name for run in runs}
    if unknown:
        print(f"no such run: {', '.join(sorted(unknown))}; there are", *(run.name for run in runs))
        return 2
    chosen = [run for run in runs if not names or run.name in names]
    results = execute_all(chosen, options.shares)
    print()
    width = max(10, *(len(run.name) for run in chosen))
    for run, result in zip(chosen, results, strict=True):
        print(f"{run.name:{width}} {result}")
    passed = sum(result.startswith("passed") for result in results)
    print(f"runs: {passed} passed, {len(chosen) - passed} failed")
    return int(passed < len(chosen))


def execute_all(runs: Sequence[Run], room: int) -> list[str]:
    """Execute runs, side by side as far as they fit into the room; return their outcomes."""
    execution = Execution(together=len(runs) > 1 and room > 0)
    before = leftovers.present()

    def ended(run: Run, result: str) -> None:
        # Runs side by side have a /dev/shm of their own.
        leftovers.sweep(before)
        print(f"===== {run.name}: {result}", flush=True)

    return side_by_side(runs, execution, ended, execution.stop, room)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
