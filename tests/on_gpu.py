"""Run the parts that need a GPU within one budget of time; started by ``launch/on_gpu.sh``.

The machine may be available for minutes only, and return few files.  After every part the summary
and one archive of all logs are written anew, so that an interrupted call has them too.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness import rounds
from tests.nccl import gpu
from tests.nccl.programs.ladder import SOME_FAILED

ROOT = Path(__file__).resolve().parent.parent
RESERVE = 15.0
"""Seconds of the budget kept for the end of the last part and for the archive."""

LEAST = 20.0
"""Least count of seconds left with which a part is begun."""

MOST_BYTES = 2**20
"""Bytes of one log in the archive, half from its beginning and half from its end."""

LINES = 16
"""Last lines of the log of a part without tests that are in the summary."""

# Without colors, which mpirun's terminal would bring: `digest` reads the outcomes.
PYTEST = ("-m", "pytest", "-v", "--color=no", "--tb=short", "-rfE", "--maxfail=25",
          "-o", "console_output_style=count")  # fmt: skip
OUTCOME = re.compile(r"^\S+::.* (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b")
NAMED = re.compile(r"^(?:FAILED|ERROR) (\S+::.*)$")
PROGRAMS = "tests/nccl/programs"


@dataclass(frozen=True)
class Part:
    """One command of a call.

    Attributes
    ----------
    name, call : str
    limit : float
        Seconds.
    arguments : tuple of str
        Of python.
    ranks : int
        Started by mpirun when there are several; they share the GPU.
    before : tuple of str
        A tool that runs it; without the tool the part is left out.
    variables : mapping of str to str
        ``{logs}`` in one stands for the folder of the logs.
    torch : bool
        Whether it needs torch with CUDA; without that the part is left out.
    before_others : bool
        Whether later parts on as many ranks, or on more, are left out if it fails.
    """

    name: str
    call: str
    limit: float
    arguments: tuple[str, ...]
    ranks: int = 1
    before: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    torch: bool = False
    before_others: bool = False


def _nccl_log(name: str) -> dict[str, str]:
    """Return the variables by which NCCL writes its choices to files of their own."""
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{{logs}}/{name}-nccl-%p.txt"}


def _ladder(name: str, limit: float, *words: str, ranks: int = 1) -> Part:
    """Return a part that climbs the ladder."""
    variables = {"LADDER_LIMIT": str(limit - 10), **_nccl_log(name)}
    arguments = ("-m", "tests.nccl.programs.ladder", *words)
    return Part(name, "first", limit, arguments, ranks, (), variables, before_others=True)


def _tests(
    name: str,
    call: str,
    limit: float,
    *arguments: str,
    ranks: int = 1,
    torch: bool = False,
    ranks_per_node: int = 0,
) -> Part:
    """Return a part that is a pytest run; NCCL logs its choices where ranks share the GPU."""
    several = ranks > 1 or name == "faults"
    variables = _nccl_log(name) if several else {"NCCL_DEBUG": "WARN"}
    if ranks_per_node:
        variables["NCCLKV_RANKS_PER_NODE"] = str(ranks_per_node)
    return Part(name, call, limit, (*PYTEST, *arguments), ranks, (), variables, torch)


def _bench(name: str, call: str, limit: float, *arguments: str, ranks: int = 1) -> Part:
    """Return a part that is a bench run, whose results are written beside the logs."""
    words = ("-m", "bench", "gpu", "--out", f"{{logs}}/{name}", *arguments)
    return Part(name, call, limit, words, ranks)


_SANITIZER = ("compute-sanitizer", "--target-processes", "all", "--error-exitcode", "9")
_PROFILER = ("ncu", "--clock-control", "none", "--kernel-name",
             "regex:^(copy|combine|sgd|checksum|nonfinite|narrow|encode|decode)$",
             "--section", "SpeedOfLight", "--section", "MemoryWorkloadAnalysis",
             "--section", "LaunchStats", "--launch-count", "30")  # fmt: skip
_STORE, _COMM = "tests/ranks/test_gpu_store.py", "tests/ranks/test_gpu_comm.py"
_CURRENT = "tests/ranks/test_gpu_current.py"
_CAPTURE = "tests/ranks/test_gpu_capture.py"
_MODULES = "tests/ranks/test_gpu_modules.py"
_KERNELS = "tests/nccl/test_gpu_kernels.py"

PARTS = (
    Part("versions", "first", 60, (f"{PROGRAMS}/versions.py",)),
    _ladder("ladder", 90),
    _ladder("ladder-2", 120, "ranks", ranks=2),
    Part("each-kernel", "first", 60, (f"{PROGRAMS}/each_kernel.py",)),
    _tests("first-cases", "first", 120, "tests/nccl/test_gpu_first.py"),
    _tests("errors", "second", 150, "tests/nccl/test_gpu_errors.py"),
    _tests("kernels", "second", 260, _KERNELS, "-k", "not more_elements_than_32_bits_count"),
    _bench("bench-model", "second", 150, "--only", "kernels", "updates", "cpu", "models",
           "--models", "ResNet-50"),
    Part("step-profile", "second", 60, ("-m", "tests.nccl.programs.step_profile")),
    Part("profile", "second", 90, (f"{PROGRAMS}/each_kernel.py", "1"), before=_PROFILER),
    _tests("share", "second", 90, _COMM, "-k", "every_length_to_all or broadcast_from", "-x",
           ranks=2),
    _tests("comm-2", "second", 90, _COMM, "-k", "not test_failure", ranks=2),
    _tests("first-cases-2", "second", 150, _STORE, "-m", "first", ranks=2),
    _tests("current", "second", 60, _CURRENT),
    # A part of their own: what goes wrong in a capture can spoil what follows in its process.  Two
    # ranks that share a GPU take two seconds for a test.
    _tests("captures-2", "third", 150, _CAPTURE, "-k", "every_rank", ranks=2),
    _tests("faults", "third", 150, "tests/nccl/test_gpu_faults.py"),
    _tests("failures-2", "third", 150, _COMM, "-k", "test_failure", ranks=2),
    _tests("modules", "third", 90, _MODULES, torch=True),
    _tests("modules-2", "third", 90, _MODULES, ranks=2, torch=True),
    _tests("captures", "third", 120, _CAPTURE),
    _bench("bench", "third", 240),
    _tests("store", "third", 300, _STORE, "-m", "not first"),
    _tests("store-2", "rest", 300, _STORE, "-m", "not first", ranks=2),
    _tests("comm", "rest", 60, _COMM),
    _tests("comm-3", "rest", 90, _COMM, ranks=3),
    _tests("first-cases-3", "rest", 150, _STORE, "-m", "first", ranks=3),
    _tests("first-cases-4", "rest", 150, _STORE, "-m", "first", ranks=4),
    _tests("nodes-4", "rest", 150, _STORE, _CAPTURE, "-k", "nodes and every_rank", ranks=4,
           ranks_per_node=2),
    _bench("bench-shared", "rest", 120, "--quick", ranks=2),
    _tests("large", "rest", 120, _KERNELS, "-k", "more_elements_than_32_bits_count"),
    Part("sanitizer", "rest", 240,
         (*PYTEST, _KERNELS, "-k", "all_kinds_at_once or test_against_numpy or TestSkip"
          " or sums_of_every_length or padding_is_cleared or added_at_their_indices"),
         before=_SANITIZER),
)  # fmt: skip
CALLS = tuple(dict.fromkeys(part.call for part in PARTS))


@dataclass
class Lease:
    """The time and the folders of one call.

    Attributes
    ----------
    lines : list of str
        The summary so far.
    closed : str
        Name of a part that failed and had to hold for later parts; empty if there is none.
    closed_from : int
        Count of ranks from which on parts are left out, if `closed` names a part.
    """

    folder: Path
    logs: Path
    end: float
    lines: list[str] = field(default_factory=list)
    closed: str = ""
    closed_from: int = 0

    def left(self) -> float:
        """Return the seconds that a part may still take."""
        return self.end - RESERVE - time.monotonic()

    def run(self, part: Part) -> bool:
        """Run a part within the time left, write the files, and return whether it passed."""
        why = self._obstacle(part)
        begin = time.monotonic()
        outcome = why or self._outcome(part, min(part.limit, self.left()))
        passed = outcome == "passed"
        if part.before_others and not (why or passed or outcome.endswith(f"code {SOME_FAILED}")):
            self.closed, self.closed_from = part.name, part.ranks
        self.say(f"{part.name:14} {outcome} ({time.monotonic() - begin:.0f} s)")
        if not why:
            for line in digest(self._log(part).read_text(errors="replace")):
                self.say(f"    {line}")
        self.write()
        return passed

    def _obstacle(self, part: Part) -> str:
        """Return the reason why a part cannot run, empty when it can."""
        if self.closed and part.ranks >= self.closed_from:
            return f"not run: {self.closed} failed"
        if part.ranks > 1 and os.environ.get("NO_MPI"):
            return "not run: two ranks do not meet (setup.txt)"
        if part.before and shutil.which(part.before[0]) is None:
            return f"not run: there is no {part.before[0]}"
        if part.torch and not _torch_finds_a_gpu():
            return "not run: torch finds no GPU, or is not installed"
        return "" if self.left() >= LEAST else "not run: the budget is spent"

    def _outcome(self, part: Part, limit: float) -> str:
        """Run a part, and describe its end."""
        stop = time.monotonic() + limit
        environment = {**os.environ, **{k: self._filled(v) for k, v in part.variables.items()}}
        if part.ranks > 1:
            environment["NCCLKV_SHARE_GPU"] = "1"
        with self._log(part).open("wb") as log:
            try:
                ended = rounds.run(
                    self._command(part),
                    lambda command: start(command, environment, log, stop - time.monotonic()),
                )
            except subprocess.TimeoutExpired:
                return f"STOPPED after {limit:.0f} s"
        if ended.lost:
            return f"FAILED: lost {', '.join(ended.lost)}"
        return "passed" if ended.code == 0 else f"FAILED with exit code {ended.code}"

    def _command(self, part: Part) -> tuple[str, ...]:
        """Return the command of a part; one rank needs no mpirun."""
        several = ("launch/local.sh", "-n", str(part.ranks))
        first = several if part.ranks > 1 else (sys.executable,)
        return (*part.before, *first, *map(self._filled, part.arguments))

    def _filled(self, text: str) -> str:
        return text.replace("{logs}", str(self.logs))

    def _log(self, part: Part) -> Path:
        return self.logs / f"{part.name}.txt"

    def say(self, line: str) -> None:
        """Print a line, and put it into the summary."""
        print(line, flush=True)
        self.lines.append(line)

    def write(self) -> None:
        """Write the summary, and all logs as one file."""
        for path in self.logs.rglob("*.txt"):
            shorten(path)
        (self.folder / "summary.txt").write_text("".join(f"{line}\n" for line in self.lines))
        unfinished = self.folder / ".logs.tar.gz"
        with tarfile.open(unfinished, "w:gz") as archive:
            archive.add(self.logs, "logs")
        unfinished.replace(self.folder / "logs.tar.gz")


def _torch_finds_a_gpu() -> bool:
    """Return whether torch is installed and finds a GPU."""
    program = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return not subprocess.run([sys.executable, "-c", program], capture_output=True).returncode


def start(command: Sequence[str], environment: Mapping[str, str], log: object, limit: float) -> int:
    """Write a command's output to a log; past its limit, end it and the processes it started."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,  # type: ignore[call-overload]
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(max(limit, 1.0))
    except subprocess.TimeoutExpired:
        for signum in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(process.pid, signum)
            try:
                process.wait(4)
                break
            except subprocess.TimeoutExpired:
                continue
        raise


def digest(text: str) -> list[str]:
    """Return the counts and first failed tests of a pytest log, or another log's last lines."""
    lines = [line for line in text.splitlines() if line.strip()]
    counts = Counter(found[1].lower() for line in lines if (found := OUTCOME.match(line)))
    if not counts:
        return [line[:240] for line in lines[-LINES:]]
    failed = dict.fromkeys(found[1][:160] for line in lines if (found := NAMED.match(line)))
    shown = list(failed)[:6]
    more = [f"and {len(failed) - len(shown)} more"] if len(failed) > len(shown) else []
    return [", ".join(f"{count} {what}" for what, count in counts.items()), *shown, *more]


def shorten(path: Path) -> None:
    """Cut the middle out of a log that is too long for the archive."""
    if path.stat().st_size <= MOST_BYTES:
        return
    text, half = path.read_bytes(), MOST_BYTES // 2
    cut = f"\n... {len(text) - 2 * half} bytes left out ...\n".encode()
    path.write_bytes(text[: half - len(cut)] + cut + text[-half:])


def chosen(words: Sequence[str]) -> list[Part]:
    """Return the parts with these names, or of these calls, as ordered there; by default all."""
    unknown = set(words) - {part.name for part in PARTS} - set(CALLS)
    if unknown:
        raise SystemExit(f"no such part: {', '.join(sorted(unknown))}; see --list")
    named = [part for word in words for part in PARTS if word in (part.name, part.call)]
    return list({part.name: part for part in named or PARTS}.values())


def main(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--list"]:
        for part in PARTS:
            print(f"{part.call:6} {part.name:14} at most {part.limit:g} s, ranks: {part.ranks}")
        return 0
    if gpu.emulated():
        print("layer 3b has no GPU, and nothing it shows is a result of one", file=sys.stderr)
        return 2
    folder, logs, *words = arguments
    parts = chosen(words)
    lease = Lease(Path(folder), Path(logs), time.monotonic() + float(os.environ["BUDGET"]))
    results = [lease.run(part) for part in parts]
    lease.say(f"parts: {sum(results)} passed, {len(results) - sum(results)} did not")
    lease.write()
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
