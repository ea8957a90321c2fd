"""``ncclkv run``: output of ranks reaches its streams and files unchanged."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.extent import combinations
from tests.harness.slow import stretched
from tests.jobs.conftest import PROGRAMS, ROOT, Job

NUMBERED = (
    "import os, sys; r = os.environ.get('PMI_RANK', '0'); "
    "os.write(1, b'out \\0\\xff ' + r.encode() + b'\\n'); os.write(2, b'no end ' + r.encode())"
)


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[bytes]:
    """Run ``ncclkv run`` with a Python program as the command's first word."""
    return subprocess.run(
        [sys.executable, "-m", "ncclkv", "run", *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=stretched(30),
        check=False,
    )


def test_a_line_of_another_job_is_not_believed(job: Job) -> None:
    ended = job("early_exits.py", "quotes", ranks=2, run=True)
    assert ended.code == 0, ended.err
    line = "ncclkv: rank 0 of 2 on other (pid 1) failed, ending the job: ValueError: of it"
    assert ended.err == f"[1] {line}\n"


def test_long_lines_are_not_torn(job: Job) -> None:
    # Longer than all that may wait for another rank's line, and over within the patience of 5 s.
    count = 2_000_000
    ended = job("early_exits.py", "long_lines", str(count), ranks=3, run=True)
    assert ended.code == 0, ended.err
    expected = []
    for rank in range(3):
        expected += [
            f"[{rank}] begin {rank}",
            f"[{rank}] {str(rank) * count}",
            f"[{rank}] end {rank}",
        ]
    assert sorted(ended.out.splitlines()) == sorted(expected)


@pytest.mark.parametrize("options", [(), ("--port", "0"), ("--hosts", "localhost:2")], ids=repr)
def test_files_have_what_the_ranks_wrote(tmp_path: Path, options: tuple[str, ...]) -> None:
    folder = tmp_path / "a" / "logs"
    size = () if "--hosts" in options else ("-n", "2")
    done = run(*size, *options, "--output-dir", str(folder), "--", sys.executable, "-c", NUMBERED)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [b"[0] out \0\xff 0", b"[1] out \0\xff 1"]
    assert sorted(done.stderr.splitlines()) == [b"[0] no end 0", b"[1] no end 1"]
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert found == {
        "rank-0.out": b"out \0\xff 0\n",
        "rank-0.err": b"no end 0",
        "rank-1.out": b"out \0\xff 1\n",
        "rank-1.err": b"no end 1",
    }


def test_files_go_on_after_a_restart(tmp_path: Path) -> None:
    count = "import os; n = os.environ['NCCLKV_RESTART']; print(n, flush=True); os._exit(n < '1')"
    options = ("-n", "1", "--output-dir", str(tmp_path), "--max-restarts", "1")
    (tmp_path / "rank-0.out").write_text("of an older job\n")
    done = run(*options, "--", sys.executable, "-c", count)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "rank-0.out").read_text() == "0\n1\n"


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("-n", "1", "--output-dir", str(tmp_path / "file"), "--", "true")
    assert done.returncode == 2
    assert b"ncclkv: --output-dir " in done.stderr
    assert b" cannot be written: " in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = run("-n", "2", "--port", str(port), "--", "true")
    assert done.returncode == 2
    assert f"ncclkv: --port {port} cannot be listened on: ".encode() in done.stderr


@pytest.mark.parametrize(
    ("script", "stream"),
    combinations(["echo short", "while echo long; do sleep 0.05; done"], ["stdout", "stderr"]),
)
def test_a_stream_on_a_full_disk(stream: str, script: str) -> None:
    """Check that the error is printed once, on the other stream, and the job ends."""
    other = "stderr" if stream == "stdout" else "stdout"
    script = f"exec >&2; {script}" if stream == "stderr" else script
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ncclkv", "run", "-n", "1", "--", "sh", "-c", script],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=full if stream == "stdout" else subprocess.PIPE,
            stderr=full if stream == "stderr" else subprocess.PIPE,
            timeout=stretched(30),
            check=False,
        )
    said: bytes = getattr(done, other)
    line = f"ncclkv run: {stream} cannot be written: [Errno 28] No space left on device\n"
    assert said.count(line.encode()) == 1, said
    assert b"Traceback" not in said
    if "while" in script:
        assert done.returncode == 143


def test_a_process_that_outlives_its_rank_holds_nothing_up(tmp_path: Path) -> None:
    """Check a process of the rank that keeps the streams open, and writes until the rank's end."""
    script = "sh -c 'while echo still; do sleep 0.05; done' & sleep 0.2; echo over"
    done = run("-n", "2", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert {b"[0] over", b"[1] over"} <= set(done.stdout.splitlines())


def test_programs_do_not_get_the_secret() -> None:
    show = "import os; print([n for n in sorted(os.environ) if n.startswith('NCCLKV_RUN')])"
    done = run("-n", "1", "--", sys.executable, "-c", show)
    assert done.stdout == b"[0] ['NCCLKV_RUN_EVENTS']\n", done.stderr


def test_one_rank_started_by_a_rank_of_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("PMI_RANK", "3")
    done = run("-n", "1", "--", "sh", "-c", "echo rank $PMI_RANK")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"[0] rank 3\n", b"")


def test_a_failure_is_reported_by_the_rank_itself(tmp_path: Path) -> None:
    """Check a report without stderr, which the rank has closed."""
    script = f"exec {sys.executable} {PROGRAMS / 'restarts.py'} bad_end between raise 2>/dev/null"
    done = run("-n", "2", "--", "env", f"MARK={tmp_path / 'mark'}", "sh", "-c", script)
    assert done.returncode == 1, done.stderr
    assert b" failed: ValueError: told to fail\n" in done.stderr


def test_without_a_connection_output_takes_the_way_of_mpirun() -> None:
    """Check mpirun's labels; each rank prints the reason, and no rank is killed."""
    supervisor = (
        sys.executable,
        "-I",
        "-S",
        str(ROOT / "ncclkv/cli/supervisor.py"),
        "@ncclkv-run-nobody",
    )
    launcher = (str(Path(sys.executable).with_name("mpirun")), "-n", "2", "-prepend-rank")
    done = subprocess.run(
        [*launcher, *supervisor, "sh", "-c", "echo to; echo fro >&2"],
        capture_output=True,
        text=True,
        timeout=stretched(30),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] to", "[1] to"]
    for rank in range(2):
        assert f"[{rank}] fro\n" in done.stderr
        assert f"[{rank}] ncclkv run: rank {rank} on " in done.stderr
    assert done.stderr.count("cannot reach the runner at @ncclkv-run-nobody") == 2


@pytest.mark.parametrize("streams", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_closed_streams_end_no_job(tmp_path: Path, streams: str, ranks: int) -> None:
    """Check a command without stdout: its number must not become that of a socket."""
    line = ["run", "-n", str(ranks), "--output-dir", str(tmp_path), "--", "echo", "here"]
    command = shlex.join([sys.executable, "-m", "ncclkv", *line])
    done = subprocess.run(
        ["sh", "-c", f"{command} {streams}"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=stretched(30),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    found = [(tmp_path / f"rank-{rank}.out").read_bytes() for rank in range(ranks)]
    assert found == [b"here\n"] * ranks
