"""``launch/kubernetes-mpijob.yaml``: its commands in pods that are machines of namespaces.

The pods have the file's sshd, keys and hostfile as Kubeflow's operator gives them, the settings of
ssh of ``launch/Dockerfile``, a user without rights and without a home, and a /dev/shm of 64 MB.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.slow import stretched
from tests.harness.source import ROOT
from tests.hosts.lab.network import Machine, Network, missing

USER = 12345
POD = Path(__file__).parent / "lab" / "pod.sh"
RANKS = 2
"""Number of ranks in a pod; the file has more."""

PATH = f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin"
LAUNCHER = {
    "HOME": "/",
    "HYDRA_HOST_FILE": "/etc/mpi/hostfile",
    "HYDRA_LAUNCH_EXTRA_ARGS": "-o ConnectionAttempts=10",
    "K_MPI_JOB_ROLE": "launcher",
    "NVIDIA_VISIBLE_DEVICES": "",
    "PATH": PATH,
    "PYTHONPATH": str(ROOT),
}
"""The environment of the launcher's pod: that of the operator for MPICH, and that of the image."""


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    """Return the specification of the job."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (extra: test)")
    text = (ROOT / "launch" / "kubernetes-mpijob.yaml").read_text()
    return dict(yaml.safe_load(text)["spec"])


@pytest.fixture(scope="module")
def pods() -> Iterator[Network]:
    """Return a network whose machines are pods."""
    if lacking := missing():
        pytest.skip(f"no pods can be made of namespaces here: {lacking}")
    if not Path("/usr/sbin/sshd").exists() or not shutil.which("ssh"):
        pytest.skip("no sshd for the pods (Debian: openssh-server, openssh-client)")
    with Network(2) as network:
        folder = network.folder
        folder.chmod(0o755)
        lines = [f"{host.name}:{RANKS}\n" for host in network.hosts]
        (folder / "hostfile").write_text("".join(lines))
        make = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-N", "", "-f"]
        subprocess.run([*make, str(folder / "id_rsa")], check=True)
        (folder / "saved").mkdir()
        shutil.chown(folder / "saved", USER, USER)
        kept = (ROOT, Path(sys.prefix).resolve(), sys.base_prefix)
        for machine in (network.login, *network.hosts):
            machine.run(POD, folder, str(USER), settings_of_ssh(), *map(str, kept))
        yield network


def settings_of_ssh() -> str:
    """Return the line of the Dockerfile that writes the settings of ssh and sshd."""
    text = (ROOT / "launch" / "Dockerfile").read_text().replace("\\\n", "")
    (line,) = re.findall(r"^RUN (printf .*)$", text, re.MULTILINE)
    return line


def container(job: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the container of a pod of the job."""
    (found,) = job["mpiReplicaSpecs"][name]["template"]["spec"]["containers"]
    return dict(found)


def in_pod(machine: Machine, command: list[str], variables: dict[str, str]) -> list[str]:
    """Return the command that runs another one in a pod, as its user, with these variables."""
    words = [f"{name}={text}" for name, text in variables.items()]
    user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    return [*machine.enter, *user, "env", "-i", f"--chdir={ROOT}", *words, *command]


@pytest.fixture
def workers(job: dict[str, Any], pods: Network) -> Iterator[None]:
    """Run the worker's command in the pods of workers, until their port is open."""
    command = container(job, "Worker")["command"]
    port = container(job, "Worker")["readinessProbe"]["tcpSocket"]["port"]
    ready = f"until (exec 3<>/dev/tcp/localhost/{port}) 2>/dev/null; do sleep 0.05; done"
    variables = {"K_MPI_JOB_ROLE": "worker", "PATH": PATH}
    started = [
        subprocess.Popen(in_pod(host, command, variables), stdin=subprocess.DEVNULL)
        for host in pods.hosts
    ]
    try:
        for host in pods.hosts:
            host.run("timeout", f"{stretched(10)}", "bash", "-c", ready)
        yield
    finally:
        pods.end_all()
        for process in started:
            process.wait()


@pytest.mark.limit(120)
@pytest.mark.usefixtures("workers")
def test_the_launcher_trains_on_the_workers(job: dict[str, Any], pods: Network) -> None:
    saved = pods.folder / "saved"
    command = [word.replace("/saved", str(saved)) for word in container(job, "Launcher")["command"]]
    done = subprocess.run(
        in_pod(pods.login, [*command, "--epochs", "10"], LAUNCHER),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=stretched(90),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    size = RANKS * len(pods.hosts)
    assert done.stderr.startswith(f"ncclkv run: {size} ranks, from HYDRA_HOST_FILE=")
    (newest,) = sorted(saved.glob("step-*"))[-1:]
    assert newest.stat().st_uid == USER
    for machine in (pods.login, *pods.hosts):
        assert not machine.files("/dev/shm")
