"""A cluster of Slurm: its controller on a network's login machine, and a node on each host."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.job import Ended
from tests.harness.slow import VARIABLE, stretched
from tests.harness.source import ROOT
from tests.hosts.lab import network
from tests.hosts.lab.network import Machine, Network

PROGRAMS = Path(__file__).resolve().parent / "programs"

LIMIT = 30.0
"""Seconds after which a job counts as hanging, and its test fails."""

LINGER = 5.0
"""Seconds that a process of a job may live after the job's end."""

_TOOLS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "sinfo")
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))

_CONFIGURATION = """
ClusterName=lab
SlurmctldHost=login
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node-%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/node-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
NodeName={nodes} CPUs=4 RealMemory=1000
PartitionName=lab Nodes={nodes} Default=YES MaxTime=10 State=UP
"""


def missing() -> str:
    """Return why no cluster can be made here; empty if one can."""
    lacking = [tool for tool in _TOOLS if not shutil.which(tool, path=_PATH)]
    if lacking:
        return f"no {', '.join(lacking)} on PATH (Debian: slurmctld, slurmd, slurm-client, munge)"
    return network.missing()


@contextmanager
def cluster(hosts: int) -> Iterator[Cluster]:
    """Make a cluster; every process of its machines ends with the block."""
    with Network(hosts) as machines:
        made = Cluster(machines)
        try:
            made.start()
            yield made
        finally:
            machines.end_all()
            for daemon in made.daemons:
                daemon.wait()


class Cluster:
    """Daemons of Slurm, and jobs that are submitted to them.

    Attributes
    ----------
    folder : Path
        Seen by all machines.
    daemons : list of subprocess.Popen
    """

    def __init__(self, machines: Network) -> None:
        self._machines = machines
        self._own: set[str] = set()
        self.folder = machines.folder
        self.daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the daemons, and wait until all nodes are idle."""
        hosts, login = self._machines.hosts, self._machines.login
        nodes = ",".join(host.name for host in hosts)
        (self.folder / "slurm.conf").write_text(
            _CONFIGURATION.format(folder=self.folder, nodes=nodes)
        )
        (self.folder / "state").mkdir()
        munge = self.folder / "munge"
        munge.mkdir()
        (munge / "key").write_bytes(secrets.token_bytes(128))
        (munge / "key").chmod(0o600)
        self.folder.chmod(0o755)  # munged refuses a socket below a private folder
        names = ("socket", "key-file", "pid-file", "log-file", "seed-file")
        files = [f"--{name}={munge / name.partition('-')[0]}" for name in names]
        # One daemon for all machines, which reach its socket through the shared folder.
        self._daemon(login, "munged", "--foreground", "--force", *files)
        self.until((munge / "socket").exists)
        self._daemon(login, "slurmctld", "-D", "-i")
        for host in hosts:
            self._daemon(host, "slurmd", "-D", "-N", host.name)
        states = ("sinfo", "--noheader", "--Node", "--format=%T")
        self.until(lambda: self._ask(*states).split() == ["idle"] * len(hosts))
        self._own = set(self._machines.processes())

    def run(self, *command: str) -> Ended:
        """Run a command on the login machine, and wait for its end."""
        begin = time.time()
        limit = stretched(LIMIT)
        here = ("env", f"--chdir={ROOT}", "timeout", "-k", "2", f"{limit}")
        done = subprocess.run(
            [*self._machines.login.enter, *here, *command],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.time() - begin
        assert seconds < limit, f"it hung:\n{done.stdout}\n{done.stderr}"
        return Ended(done.returncode, done.stdout, done.stderr, seconds)

    def submit(self, command: str, *options: str) -> Batch:
        """Submit a command of a shell as a batch job.

        Parameters
        ----------
        command : str
        options : str
            Of sbatch.
        """
        return self._submit(*options, "--wrap", command)

    def submit_file(self, path: Path, *options: str, **variables: str) -> Batch:
        """Submit a file as a batch job; options go before those in the file.

        Parameters
        ----------
        path : Path
        options : str
            Of sbatch.
        variables : str
            Of the job's environment.
        """
        exported = ",".join(["ALL", *(f"{name}={text}" for name, text in variables.items())])
        return self._submit(f"--export={exported}", *options, str(path))

    def _submit(self, *words: str) -> Batch:
        """Submit a batch job, whose output goes to a file that all machines see."""
        output = self.folder / f"output-{secrets.token_hex(4)}"
        done = self.run("sbatch", "--parsable", f"--output={output}", *words)
        assert done.code == 0, done.err
        return Batch(self, int(done.out), output)

    def until(
        self, ready: Callable[[], bool], output: Callable[[], str] = str, seconds: float = LIMIT
    ) -> None:
        """Wait until a condition holds; the error has the output, and the daemons' own."""
        limit = time.monotonic() + stretched(seconds)
        while not ready():
            ended = any(daemon.poll() is not None for daemon in self.daemons)
            if ended or time.monotonic() > limit:
                why = "a daemon has ended" if ended else "it hung"
                raise AssertionError(f"{why}:\n{output()}\n{self._logs()}")
            time.sleep(0.05)

    def nothing_left(self) -> None:
        """Fail if a process of a job is alive on any machine some seconds after its end."""
        limit = time.monotonic() + stretched(LINGER)
        while (left := set(self._machines.processes()) - self._own) and time.monotonic() < limit:
            time.sleep(0.05)
        assert not left, "the job left processes:\n" + "\n".join(left)

    def state_of(self, job: int) -> dict[str, str]:
        """Return the fields of a job, such as JobState and ExitCode."""
        words = self._ask("scontrol", "--oneliner", "show", "job", str(job)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def _ask(self, *command: str) -> str:
        """Return the output of a command on the login machine; empty if it fails."""
        line = [*self._machines.login.enter, *command]
        done = subprocess.run(
            line, env=self._environment(), capture_output=True, text=True, check=False
        )
        return done.stdout if done.returncode == 0 else ""

    def _daemon(self, machine: Machine, *command: str) -> None:
        with (self.folder / f"{command[0]}.{machine.name}.out").open("w") as output:
            process = subprocess.Popen(
                [*machine.enter, *command],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the tests
            )
        self.daemons.append(process)

    def _logs(self) -> str:
        """Return the last lines of each daemon's output."""
        texts = {path: path.read_text(errors="replace") for path in self.folder.glob("*.out")}
        return "\n".join(f"{path.name}:\n{text[-1500:]}" for path, text in texts.items())

    def _environment(self) -> dict[str, str]:
        """Return this process's environment, with Slurm's configuration and the Python of here."""
        # Unbuffered, a line is several writes, and the lines of two ranks may be mixed.
        # The runs of one machine set UCX_TLS without a network.
        dropped = ("PYTHONUNBUFFERED", "UCX_TLS", VARIABLE)
        kept = {
            name: text
            for name, text in os.environ.items()
            if name not in dropped and not re.match("SLURM|SBATCH|PMI|HYDRA|MPI_|OMPI_", name)
        }
        return {
            **kept,
            "PATH": f"{Path(sys.executable).parent}:{_PATH}",
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            # The nodes have more CPUs than this machine, and Open MPI would bind ranks to them.
            "PRTE_MCA_hwloc_default_binding_policy": "none",
        }


class Batch:
    """A batch job.

    Attributes
    ----------
    job_id : int
    """

    def __init__(self, cluster: Cluster, job_id: int, output: Path) -> None:
        self.job_id = job_id
        self._cluster = cluster
        self._output = output

    @property
    def output(self) -> str:
        """Return what the job has written until now, on both streams."""
        return self._output.read_text() if self._output.exists() else ""

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait until a condition holds, which must be before the job's end."""

        def holds() -> bool:
            held = ready()
            assert held or not self._over(), f"the job ended:\n{self.output}"
            return held

        self._cluster.until(holds, lambda: self.output)

    def send(self, signal: str, *options: str) -> None:
        """Send a signal to the job's processes by scancel."""
        done = self._cluster.run("scancel", f"--signal={signal}", *options, str(self.job_id))
        assert done.code == 0, done.err

    def end(self) -> str:
        """Wait for the end of the job; return its exit code and signal, such as ``"0:0"``."""
        self._cluster.until(self._over, lambda: self.output)
        return self._cluster.state_of(self.job_id)["ExitCode"]

    def _over(self) -> bool:
        state = self._cluster.state_of(self.job_id).get("JobState")
        return state not in ("PENDING", "RUNNING", "COMPLETING", None)
