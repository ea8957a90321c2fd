"""Machines made of namespaces: hosts that share no memory, process, name or network interface.

A network has a login machine and some hosts, joined by a bridge that lies in the login machine's
network namespace.  Nothing of this machine's own network changes, and no namespace has a name, so
any count of networks can exist at once.  The machines are namespaces of processes below the login
machine's, whose first process reads from a pipe: when this process closes it or dies, all end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.harness.source import ROOT

HERE = Path(__file__).resolve().parent
TOOLS = ("unshare", "nsenter", "ip", "mount", "hostname")
NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")
BRIDGE = "lab0"
LOGIN = "login"
_REMOVE = ("bash", "-c", '"$@"; rm -rf "$0"')
_START_SECONDS = 20.0
_END_SECONDS = 5.0


def missing() -> str:
    """Return why this machine cannot make others; empty if it can."""
    lacking = [tool for tool in TOOLS if not shutil.which(tool)]
    if lacking:
        return f"no {', '.join(lacking)} on PATH (Debian: iproute2, util-linux, hostname)"
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    tried = subprocess.run(
        ["unshare", *NAMESPACES, "--fork", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"],
        capture_output=True,
        text=True,
        check=False,
    )
    return tried.stderr.strip().replace("\n", "; ") if tried.returncode else ""


class Machine:
    """One machine of a network.

    Attributes
    ----------
    name, address : str
    pid : int
        Its first process, as this machine counts processes.
    """

    def __init__(self, name: str, address: str, pid: int) -> None:
        self.name, self.address, self.pid = name, address, pid
        self.space = os.readlink(f"/proc/{pid}/ns/pid")

    @property
    def enter(self) -> list[str]:
        """Return the command that runs another one here."""
        return ["nsenter", "--target", str(self.pid), *NAMESPACES]

    def run(self, *command: str | Path, check: bool = True) -> str:
        """Run a command here, wait for its end and return its standard output."""
        line = [*self.enter, *map(str, command)]
        ended = subprocess.run(line, capture_output=True, text=True, check=False)
        if check and ended.returncode:
            raise OSError(f"{self.name}: {' '.join(line)}: {ended.stderr}")
        return ended.stdout

    def files(self, folder: str) -> set[str]:
        """Return the names of files in one of this machine's folders, such as /dev/shm."""
        return set(os.listdir(f"/proc/{self.pid}/root{folder}"))


class Network:
    """Hosts ``node1``, ``node2`` and so on, and the machine on which jobs are started.

    Parameters
    ----------
    hosts : int
    keep : sequence of Path
        Folders of this machine that all machines see, if they lie in /tmp, beside the project and
        the environment.

    Attributes
    ----------
    folder : Path
        Seen by all machines, as a shared file system is.  Removed at the end.
    login : Machine
    hosts : list of Machine
    """

    def __init__(self, hosts: int, keep: Sequence[Path] = ()) -> None:
        self._count = hosts
        self._keep = [str(path) for path in (ROOT, sys.prefix, sys.base_prefix, *keep)]
        self._started: list[subprocess.Popen[bytes]] = []
        self._own: set[int] = set()
        self._filtered: list[Machine] = []

    def __enter__(self) -> Network:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._end()

    def _start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hosts-"))
        names = [f"node{index}" for index in range(1, self._count + 1)]
        addresses = {LOGIN: "10.77.0.254"} | {n: f"10.77.0.{i}" for i, n in enumerate(names, 1)}
        lines = [f"{address} {name}" for name, address in addresses.items()]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        shutil.copy(HERE / "agent.sh", self.folder)
        self.login = self._machine(LOGIN, addresses[LOGIN], [])
        ip = ("ip", "link", "add", BRIDGE, "type", "bridge")
        self.login.run(*ip)
        self._address(self.login, BRIDGE)
        self.hosts = [self._machine(name, addresses[name], self.login.enter) for name in names]
        for host in self.hosts:
            self._connect(host)
        self._own = {pid for pid, _ in self._all()}

    def _machine(self, name: str, address: str, inside: list[str]) -> Machine:
        """Start the first process of a machine, and wait until it is set up."""
        script = [str(HERE / "machine.sh"), name, str(self.folder), *self._keep]
        spaces = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
        # Another process removes the folder if this one is killed.
        process = subprocess.Popen(
            [*inside, *spaces, *script]
            if inside
            else [*_REMOVE, str(self.folder), *spaces, *script],
            stdin=subprocess.PIPE,
            # Ctrl-C is for the tests. They end this process by closing its standard input.
            start_new_session=True,
        )
        self._started.append(process)
        limit = time.monotonic() + _START_SECONDS
        while not (self.folder / f"ready.{name}").exists():
            if process.poll() is not None or time.monotonic() > limit:
                raise OSError(f"{name} was not set up; its script is {script[0]}")
            time.sleep(0.005)
        pid = next(pid for pid in _below(process.pid) if _pids(pid)[-1] == 1)
        pids = _pids(pid)
        if inside:
            (self.folder / f"pid.{name}").write_text(str(pids[-2]))
        return Machine(name, address, pid)

    def _connect(self, host: Machine) -> None:
        """Connect a host to the bridge by a virtual cable, whose end there has the host's name."""
        add = ("ip", "link", "add", host.name, "type", "veth", "peer", "eth0", "netns")
        self.login.run(*add, str(_pids(host.pid)[-2]))
        self.login.run("ip", "link", "set", host.name, "master", BRIDGE, "up")
        self._address(host, "eth0")

    def _address(self, machine: Machine, device: str) -> None:
        machine.run("ip", "address", "add", f"{machine.address}/24", "dev", device)
        machine.run("ip", "link", "set", device, "up")

    def _end(self) -> None:
        for process in reversed(self._started):
            assert process.stdin is not None
            process.stdin.close()
        for process in reversed(self._started):
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def cut(self, host: Machine) -> None:
        """Disconnect a host from the bridge."""
        self.login.run("ip", "link", "set", host.name, "down")

    def mend(self, host: Machine) -> None:
        """Reconnect a host to the bridge."""
        self.login.run("ip", "link", "set", host.name, "up")

    def drop(self, host: Machine, *senders: Machine) -> float:
        """Drop all packets from the senders to a host, and none from the host.

        Returns
        -------
        float
            The time at which the loss began, in seconds since the epoch.
        """
        return self._filter(host, *(sender.address for sender in senders))

    def lose(self, host: Machine, one_in: int) -> None:
        """Drop one in `one_in` packets that arrive at a host, drawn by the kernel."""
        self._filter(host, "--one-in", str(one_in))

    def heal(self) -> None:
        """Undo `cut`, `drop` and `lose`, on all hosts."""
        for host in self.hosts:
            self.mend(host)
        while self._filtered:
            self._filtered.pop().run(sys.executable, HERE / "packets.py")
        # An address requested while a link was down stays unknown for a second.
        for machine in (self.login, *self.hosts):
            machine.run("ip", "neigh", "flush", "all")

    def _filter(self, host: Machine, *arguments: str) -> float:
        """Start a loss on a host; return the time of its beginning."""
        began = host.run(sys.executable, HERE / "packets.py", *arguments)
        self._filtered.append(host)
        return float(began)

    def processes(self) -> list[str]:
        """Return the processes of all machines but their first ones, as "host: command"."""
        return [words for pid, words in self._all() if pid not in self._own]

    def _all(self) -> list[tuple[int, str]]:
        """Return the processes of all machines that are not zombies, by this machine's ids."""
        names = {machine.space: machine.name for machine in (self.login, *self.hosts)}
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                name = names.get(os.readlink(path / "ns/pid"))
                words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if name and any(words):  # a zombie has no command line
                found.append((int(path.name), f"{name}: {' '.join(words).strip()}"))
        return found

    def end_all(self) -> None:
        """Kill every process of the machines but their first ones."""
        for pid, _ in self._all():
            if pid not in self._own:
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    continue


def _below(pid: int) -> list[int]:
    """Return the descendants of a process, each before its own."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            text = (path / "stat").read_text()
        except OSError:
            continue
        parents.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(path.name))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found


def _pids(pid: int) -> list[int]:
    """Return a process's ids, from this machine's to that in its innermost namespace."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    return [int(text) for text in line.split()[1:]]
