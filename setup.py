"""The optional extension in C; ``setup.cfg`` has all other settings."""

import ast
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = "ncclkv/kernels/host"
PROGRAMS = "ncclkv/kernels/programs"

# Contraction would join two operations into one rounding, and change NumPy's bits. Without errno a
# loop with a square root is vectorised, with the same bits.  Python's own flags ask for debug
# information, which would be four fifths of the extension and a fifth of the time to compile it.
ARGUMENTS = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-g0"]


def programs() -> str:
    """Return the header that compiles each program for each of its numbers of states.

    The table of programs is read, not imported: NumPy may be absent while a wheel is built.
    """
    source = ast.parse(Path(PROGRAMS, "__init__.py").read_text())
    updates, rows = [], []
    for call in ast.walk(source):
        if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != "Program":
            continue
        name, _, states = call.args[:3]
        row = "NORM_ROW" if "norms" in [each.arg for each in call.keywords] else "ROW"
        for number in ast.literal_eval(states):
            updates.append(
                f'#define PROGRAM {name.value}\n#define STATES {number}\n#include "update.h"\n'
            )
            rows.append(f"    {row}({name.value}, {number}),\n")
    return "".join([*updates, "static const struct program programs[] = {\n", *rows, "};\n"])


class BuildExtension(build_ext):
    """Build of the extension, which first makes the header of all programs."""

    def build_extension(self, extension: Extension) -> None:
        folder = Path(self.build_temp)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "programs.h").write_text(programs())
        extension.include_dirs += [str(folder), f"{KERNELS}/c"]
        super().build_extension(extension)


# Without a compiler or Python's headers the installation continues, and Python and NumPy do the
# work.
setup(
    ext_modules=[
        Extension(
            "ncclkv.kernels.host._compiled",
            sources=[f"{KERNELS}/c/compiled.c"],
            depends=[*glob(f"{KERNELS}/c/*.h"), *glob(f"{PROGRAMS}/*.*")],
            extra_compile_args=ARGUMENTS,
            optional=True,
        ),
    ],
    cmdclass={"build_ext": BuildExtension},
)
