"""Run a command in layer 3b: ``python -m tests.nccl.emulated COMMAND ...``.

The layer is built first if it is missing. A command that ends in ``.py`` or begins with ``-`` is
run by this Python. All processes that the command starts inherit its environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.nccl.emulated import build, compiler, driver
from tests.nccl.emulated.missing import Missing

ROOT = build.HERE.parents[2]
USAGE = """usage: python -m tests.nccl.emulated COMMAND ...

    python -m tests.nccl.emulated launch/local.sh -n 2 -m pytest tests/ranks/test_gpu_store.py
    python -m tests.nccl.emulated train.py --kvstore nccl
    python -m tests.nccl.emulated -c 'import cupy; print(cupy.arange(3) + 1)'
"""


def environment(built: build.Built, before: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a command in layer 3b.

    No variable puts the libraries on the system loader's path. A process without the finder must
    find no libcuda, because it would then load the vendor's runtime.

    Parameters
    ----------
    built : build.Built
    before : mapping of str to str
        The variables outside of it.
    """
    caches = build.caches()
    paths = [str(build.HERE / "finder"), str(ROOT)]
    return {
        **before,
        "NCCLKV_EMULATED": "1",
        "EMULATED_BUILD": str(built.folder),
        "PYTHONPATH": _joined(paths, before.get("PYTHONPATH", "")),
        # CuPy's default is cub, which contains the vendor's runtime.
        "CUPY_ACCELERATORS": "",
        # The cache of kernels for the host must be apart from that of a GPU.
        "CUPY_CACHE_DIR": str(caches / "cupy"),
        "NCCLKV_KERNEL_CACHE": str(caches / "ncclkv"),
        "EMULATED_KERNELS": str(caches / "compiled"),
        "VENV": before.get("VENV", sys.prefix),
    }


def _joined(first: Sequence[str], rest: str) -> str:
    others = [part for part in rest.split(":") if part and part not in first]
    return ":".join([*first, *others])


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    try:
        built = build.build()
    except Missing as missing:
        print(f"layer 3b cannot be built here: {missing}", file=sys.stderr)
        return 2
    except compiler.Failed as failed:
        print(failed, file=sys.stderr)
        return 1
    if found := driver.present(built.libraries):
        print(
            f"layer 3b does not start where a driver is present, and there is {found}",
            file=sys.stderr,
        )
        return 2
    command = list(arguments)
    if command[0].startswith("-") or (command[0].endswith(".py") and Path(command[0]).is_file()):
        command.insert(0, sys.executable)
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, environment(built, os.environ))
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
