"""Processes that outlive their parents are adopted and killed."""

from __future__ import annotations

import subprocess
import sys
import time

from tests.harness.source import ROOT

PROGRAM = """
import os, subprocess, sys, time
from ncclkv.cli import descendants
descendants.adopt()
spared = subprocess.Popen(["sleep", "60"])
quick = "import subprocess; print(subprocess.Popen(['sleep', '0']).pid)"
ended = subprocess.run([sys.executable, "-c", quick], capture_output=True, text=True).stdout
long = "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True, " \
    "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
daemon = int(subprocess.run([sys.executable, "-c", long], capture_output=True, text=True).stdout)
assert daemon in descendants.children(), "it was not adopted"
descendants.reap(but=spared.pid)
limit = time.monotonic() + 10
while int(ended) in descendants.children() and time.monotonic() < limit:
    time.sleep(0.01)
    descendants.reap(but=spared.pid)
assert int(ended) not in descendants.children(), "it was not reaped"
descendants.end_all(spared=[spared.pid])
assert descendants.children() == [spared.pid], "a daemon is left, or too much was ended"
descendants.end_all()
assert descendants.children() == []
print("well")
"""


def test_daemons_are_adopted_and_ended() -> None:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout == "well\n", done.stderr
    assert time.monotonic() - start < 30
