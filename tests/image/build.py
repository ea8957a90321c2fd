"""Builds of images without their tools: lines of a Dockerfile or of Apptainer's file, in a root.

debootstrap makes the root of ``FROM debian:SUITE-slim``, which has about the same packages.  Its
commands run by chroot, in namespaces of mounts and processes of their own.  They are root's, and
scripts of packages write to /etc, /usr and /var: no folder of this machine is mounted there.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.harness.source import ROOT

_PASSED_ON = re.compile(r"(?i)pip_(index_url|extra_index_url|trusted_host)|(https?|no)_proxy")
"""Variables by which pip reaches a package index."""

_CERTIFICATES = (os.environ.get("PIP_CERT", ""), ssl.get_default_verify_paths().cafile or "")
"""Files with the certificates by which pip trusts an index; the first that is set counts."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_IN_ROOT = """
root=$1 shm=$2 user=$3
shift 3
mount --make-rprivate /
mount -t proc proc "$root/proc"
mount --bind /sys "$root/sys"
mount -o remount,bind,ro "$root/sys"
mount -t tmpfs tmpfs "$root/dev"
for each in null zero full random urandom tty; do
    touch "$root/dev/$each"
    mount --bind "/dev/$each" "$root/dev/$each"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/shm"
mount -t tmpfs -o "size=$shm" tmpfs "$root/dev/shm"
exec chroot --userspec="$user" "$root" "$@"
"""


def missing() -> str:
    """Return why no root can be made here; empty if one can."""
    if os.geteuid() != 0:
        return "only root can run debootstrap"
    lacking = [tool for tool in ("debootstrap", "unshare", "chroot") if not shutil.which(tool)]
    return f"no {', '.join(lacking)} on PATH (Debian: debootstrap, util-linux)" if lacking else ""


def bootstrap(folder: Path, suite: str) -> str:
    """Make the root of a release of Debian; return the error, empty if it is made."""
    command = ["debootstrap", "--variant=minbase", suite, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout[-500:] + done.stderr[-500:] if done.returncode else ""


class Root:
    """A file system in a folder, in which commands run.

    Attributes
    ----------
    folder : Path
    variables : dict of str to str
        The environment of its commands.
    directory : str
        The working directory of its commands.
    """

    def __init__(self, base: Path, folder: Path) -> None:
        subprocess.run(["cp", "-a", str(base), str(folder)], check=True)
        self.folder = folder
        self.variables = {"PATH": _PATH, "DEBIAN_FRONTEND": "noninteractive"}
        self.directory = "/"
        shutil.copy("/etc/resolv.conf", folder / "etc")
        # A copy: packages rewrite /etc/ssl/certs, and a mount there would rewrite this machine's.
        if certificates := next(filter(None, _CERTIFICATES), ""):
            shutil.copy(certificates, folder / "etc" / "index.crt")
            self.variables["PIP_CERT"] = "/etc/index.crt"

    def run(
        self, *command: str, user: str = "0:0", shm: str = "64m", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the root, and wait for its end."""
        index = {name: text for name, text in os.environ.items() if _PASSED_ON.fullmatch(name)}
        spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', self.directory, *command]
        return subprocess.run(
            [*spaces, "sh", "-euc", _IN_ROOT, "sh", str(self.folder), shm, user, *inside],
            env={**index, **self.variables, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def shell(self, line: str) -> None:
        """Run a line of a shell, which must succeed."""
        done = self.run("sh", "-ec", line)
        assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"

    def copy(self, source: Path, target: str) -> None:
        """Copy a file or a folder; a target that ends with a slash is a folder."""
        inside = self.folder / os.path.join(self.directory, target).lstrip("/")
        if target.endswith("/"):
            inside = inside / source.name
        inside.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, inside, symlinks=True)
        else:
            shutil.copy(source, inside)


def instructions(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Dockerfile, each with its text on one line."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, text = line.partition(" ")
            yield word, text.strip()


def build(path: Path, base: Path, folder: Path) -> Root:
    """Execute a Dockerfile; return the root of its last stage, for the last stage's user."""
    stages: dict[str, Root] = {}
    root: Root | None = None
    for word, text in instructions(path):
        if word == "FROM":
            name = text.partition(" AS ")[2] or "last"
            root = stages[name] = Root(base, folder / name)
        elif root is not None:
            _execute(root, stages, word, text)
    return stages["last"]


def _execute(root: Root, stages: dict[str, Root], word: str, text: str) -> None:
    """Execute an instruction of a stage."""
    if word == "RUN":
        root.shell(text)
    elif word in ("ARG", "ENV"):
        name, _, value = text.partition("=")
        root.variables[name] = value.replace("$PATH", root.variables["PATH"])
    elif word == "WORKDIR":
        root.directory = text
        (root.folder / text.lstrip("/")).mkdir(parents=True, exist_ok=True)
    elif word == "COPY":
        option, *words = shlex.split(text) if text.startswith("--from") else ("", *text.split())
        *sources, target = words
        top = stages[option.partition("=")[2]].folder if option else ROOT
        for source in sources:
            many = len(sources) > 1 or target == "./"
            root.copy(top / source.lstrip("/"), f"{target.rstrip('/')}/" if many else target)
    else:
        assert word == "USER", f"the instruction {word} is not known here"


def sections(path: Path) -> dict[str, Sequence[str]]:
    """Return the lines of each section of a file of Apptainer, by name."""
    found: dict[str, list[str]] = {"": []}
    name = ""
    for line in path.read_text().splitlines():
        if line.startswith("%"):
            name = line[1:].strip()
            found[name] = []
        elif line.strip() and not line.lstrip().startswith("#"):
            found[name].append(line.strip())
    return found
