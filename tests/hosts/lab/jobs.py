"""MPI jobs over the hosts of a network, started on its login machine and watched from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.harness.job import Ended
from tests.harness.slow import VARIABLE, stretched
from tests.harness.source import ROOT
from tests.hosts.lab.network import Network

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"

LIMIT = 30.0
"""Seconds after which a job counts as hanging, and its test fails."""

GRACE = 1.5
"""Seconds between the error of a rank and its end, in which the others raise, too."""

LINGER = 3.0
"""Seconds that a process of a job may live after the job's end."""

Fault = Callable[[], float | None]
"""A fault of the network; it returns the time at which it began, if it takes long to begin."""


class Jobs:
    """Jobs on a network: as many ranks on each host, ranks in the order of hosts.

    Parameters
    ----------
    network : Network
    ranks : int
        Count of ranks of each host.
    """

    def __init__(self, network: Network, ranks: int) -> None:
        self.network, self.ranks = network, ranks
        self.size = ranks * len(network.hosts)
        self.mark = network.folder / "mark"
        lines = [f"{host.name}:{ranks}\n" for host in network.hosts]
        (network.folder / "hostfile").write_text("".join(lines))

    def told(self) -> list[str]:
        """Return each rank's file MARK.RANK, "" if it wrote none."""
        paths = [Path(f"{self.mark}.{rank}") for rank in range(self.size)]
        return [path.read_text() if path.exists() else "" for path in paths]

    def host_of(self, rank: int) -> str:
        """Return the name of a rank's host."""
        return self.network.hosts[rank // self.ranks].name

    def program(
        self,
        name: str | Path,
        *arguments: str,
        run: bool = False,
        limit: float = LIMIT,
        fault: Fault | None = None,
        **variables: str,
    ) -> Ended:
        """Run a program of ``programs/`` on all ranks, by mpirun or ``ncclkv run``; see `run`."""
        path = str(PROGRAMS / name)
        line = (*(self.ncclkv_run if run else self.mpirun), sys.executable, path, *arguments)
        return self.run(*line, limit=limit, fault=fault, **variables)

    @property
    def mpirun(self) -> tuple[str, ...]:
        """Return the command that starts others on all ranks by mpirun."""
        return (str(Path(sys.executable).with_name("mpirun")), "-n", str(self.size))

    @property
    def ncclkv_run(self) -> tuple[str, ...]:
        """Return the command that starts others on all ranks by ``ncclkv run``."""
        return (sys.executable, "-m", "ncclkv", "run", "-n", str(self.size), "--")

    def run(
        self, *command: str, limit: float = LIMIT, fault: Fault | None = None, **variables: str
    ) -> Ended:
        """Run a command on the login machine, in a launcher's environment, and wait for its end.

        Parameters
        ----------
        command : str
        limit : float
            Seconds that it may take.
        fault : callable, optional
            Called once a rank has touched the file MARK.  The network is healed at the end.
            The job's seconds count from the beginning that it returns, else from the file.
        variables : str
            Of its environment.

        Raises
        ------
        AssertionError
            When it takes longer, or leaves a process on any machine.
        """
        for path in self.network.folder.glob(f"{self.mark.name}*"):
            path.unlink()
        limit = stretched(limit)
        begin, fault_began = time.time(), None
        process = subprocess.Popen(
            [*self.network.login.enter, "env", f"--chdir={ROOT}", *command],
            env={**self._environment(), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            if fault is not None:
                self._wait_for_mark(process, begin + limit)
                fault_began = fault()
            out, err = process.communicate(timeout=max(begin + limit - time.time(), 0.1))
            end = time.time()
            self._nothing_left()
        except subprocess.TimeoutExpired:
            self.network.end_all()
            out, err = process.communicate()
            raise AssertionError(f"the job hung:\n{out}\n{err}") from None
        finally:
            self.network.end_all()
            process.wait()
            if fault is not None:
                self.network.heal()
        if self.mark.exists():
            begin = fault_began or self.mark.stat().st_mtime
        return Ended(process.returncode, out, err, end - begin)

    def _wait_for_mark(self, process: subprocess.Popen[str], limit: float) -> None:
        while not self.mark.exists() and process.poll() is None and time.time() < limit:
            time.sleep(0.01)

    def _nothing_left(self) -> None:
        """Fail if a process of the job is alive on any machine some seconds after its end."""
        limit = time.monotonic() + stretched(LINGER)
        while (left := self.network.processes()) and time.monotonic() < limit:
            time.sleep(0.02)
        assert not left, "the job left processes:\n" + "\n".join(left)

    def _environment(self) -> dict[str, str]:
        """Return this process's environment, with MPICH's settings for the hosts."""
        # Unbuffered, a line is several writes, and the lines of two ranks may be mixed.
        # The runs of one machine set UCX_TLS without a network.
        dropped = ("PYTHONUNBUFFERED", "UCX_TLS", VARIABLE)
        inherited = {name: os.environ[name] for name in os.environ if name not in dropped}
        folder = self.network.folder
        return {
            **inherited,
            "HYDRA_HOST_FILE": str(folder / "hostfile"),
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": str(folder / "agent.sh"),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MARK": str(self.mark),
            "GRACE": f"{stretched(GRACE):g}",
        }
