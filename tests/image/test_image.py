"""``launch/Dockerfile`` and ``launch/apptainer.def``: their lines, then jobs in what they make."""

from __future__ import annotations

import pytest

from tests.harness.source import ROOT
from tests.image.build import Root, build, sections

pytestmark = pytest.mark.limit(900)

JOB = ("ncclkv", "run", "-n", "2", "--", "python", "train.py", "--epochs", "12")
SSH = """
/usr/sbin/sshd -De 2>/dev/null &
for each in 1 2 3 4 5 6 7 8 9 10; do
    sleep 1
    ssh localhost echo reached && exit
done
"""


@pytest.fixture(scope="module")
def image(base, folder):
    return build(ROOT / "launch" / "Dockerfile", base, folder)


def test_commands_cannot_write_to_this_machine(base, folder):
    """Check the mounts: the scripts of packages run as root there."""
    shown = Root(base, folder / "mounts").run("cat", "/proc/mounts").stdout
    mounts = [line.split()[1:4] for line in shown.splitlines()]
    of_machine = [(path, kind) for path, kind, options in mounts if "rw" in options.split(",")]
    own = {"/": None, "/proc": "proc", "/dev": "tmpfs", "/dev/shm": "tmpfs"}
    nodes = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")}
    assert {path for path, _ in of_machine} - nodes <= own.keys(), shown
    assert all(kind == own[path] for path, kind in of_machine if own.get(path)), shown


@pytest.mark.parametrize("user", [1000, 12345], ids=["its user", "a user without a name"])
def test_a_job_in_the_image(image, user):
    """Check a job with Docker's /dev/shm of 64 MB."""
    done = image.run(*JOB, user=f"{user}:{user}", HOME="/")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[0] " in done.stdout


def test_the_command_of_a_worker_of_kubernetes(image):
    """Check sshd and ssh without root, with keys where the operator of MPIJobs puts them."""
    image.shell("mkdir -p /etc/ssh/job; ssh-keygen -q -t ecdsa -N '' -f /etc/ssh/job/id_rsa")
    image.shell("cd /etc/ssh/job; cp id_rsa.pub authorized_keys; chmod 644 *; chmod 1777 .")
    done = image.run("bash", "-c", SSH, user="1000:1000")
    assert (done.returncode, done.stdout) == (0, "reached\n"), done.stderr


def test_a_job_in_the_image_of_apptainer(base, folder):
    parts = sections(ROOT / "launch" / "apptainer.def")
    root = Root(base, folder / "apptainer")
    for line in parts["files"]:
        source, target = line.split()
        root.copy(ROOT / source, target)
    root.shell("\n".join(parts["post"]))
    # Apptainer shows the caller's folder inside.
    root.copy(ROOT / "train.py", "/train.py")
    script = "\n".join([*parts["environment"], *parts["runscript"]])
    done = root.run("sh", "-c", script, "sh", *JOB, user="12345:12345", HOME="/")
    assert done.returncode == 0, done.stdout + done.stderr
