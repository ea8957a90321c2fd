"""Files of JSON lines: blocks, cut lines, forks and full disks."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ncclkv import concurrency
from ncclkv.observe.json_lines import JsonLines, read


def test_records_are_written_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    write = os.write
    monkeypatch.setattr(
        os, "write", lambda file, data: (writes.append(bytes(data)), write(file, data))[1]
    )
    monkeypatch.setattr(concurrency, "perf_counter", lambda: 5.0)
    lines = JsonLines(tmp_path / "a.jsonl")
    for number in range(1500):
        lines.add({"number": number}, 5.5)
    assert len(writes) == 1
    assert writes[0].endswith(b'{"number":999}\n')
    lines.add({"number": 1500}, 6.5)
    assert len(writes) == 2, "an old block is written, too"
    lines.close()
    lines.close()
    assert [each["number"] for each in read(lines.path)] == [*range(1501)]


def test_a_second_file_of_one_name_is_refused(tmp_path: Path) -> None:
    JsonLines(tmp_path / "a.jsonl").close()
    with pytest.raises(FileExistsError):
        JsonLines(tmp_path / "a.jsonl")


def test_cut_and_foreign_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\n[2]\n\xff{"b"\n{"a":3}\n{"a":4,"b":"cu')
    assert [*read(path)] == [{"a": 1}, {"a": 3}]


def test_names_of_any_characters_stay(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "a.jsonl")
    lines.add({"key": "a\nb\udce9ü"}, 0.0)
    lines.close()
    assert [*read(lines.path)] == [{"key": "a\nb\udce9ü"}]


def test_a_write_that_fails_drops_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = JsonLines(tmp_path / "a.jsonl")
    lines.add({"a": 1}, 0.0)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            lines.flush()
    lines.add({"a": 2}, 0.0)
    lines.close()
    assert [*read(lines.path)] == [{"a": 2}]


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:3]))
    lines = JsonLines(tmp_path / "a.jsonl")
    lines.add({"text": "long enough"}, 0.0)
    lines.close()
    assert [*read(lines.path)] == [{"text": "long enough"}]


def test_a_fork_writes_nothing(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "a.jsonl")
    lines.add({"a": 1}, 0.0)
    child = os.fork()
    if not child:
        lines.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert lines.path.read_bytes() == b""
    lines.close()
    assert [*read(lines.path)] == [{"a": 1}]


PROGRAM = """
import sys, numpy as np, ncclkv
kv = ncclkv.create("local")
kv.init("w", np.zeros(4))
trace = kv.trace(sys.argv[1])
print(trace.path, flush=True)
while True:
    kv.push("w", np.ones(4))
"""


@pytest.mark.limit(60)
def test_a_killed_process_leaves_whole_lines(tmp_path: Path) -> None:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, tmp_path], stdout=subprocess.PIPE)
    assert program.stdout is not None
    path = Path(program.stdout.readline().decode().strip())
    while path.stat().st_size < 100_000:
        assert program.poll() is None
        time.sleep(0.01)
    program.send_signal(signal.SIGKILL)
    program.wait()
    program.stdout.close()
    text = path.read_text()
    assert text.endswith("\n")
    assert len([*read(path)]) == text.count("\n") > 500


ENDING = PROGRAM.replace("while True:\n    kv", "for _ in range(3):\n    kv")


def test_a_process_that_ends_without_close_writes_what_it_has(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", ENDING, tmp_path], check=True, stdout=subprocess.DEVNULL)
    (path,) = tmp_path.iterdir()
    assert [each.get("name") for each in read(path)].count("push") == 3
