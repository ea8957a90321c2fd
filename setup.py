"""The optional extension in C; ``setup.cfg`` has all other settings."""

from glob import glob

from setuptools import Extension, setup

KERNELS = "ncclkv/kernels/host"
PROGRAMS = "ncclkv/kernels/programs"

# Contraction would join two operations into one rounding, and change NumPy's bits. Without errno a
# loop with a square root is vectorised, with the same bits.  Python's own flags ask for debug
# information, which would be four fifths of the extension and a fifth of the time to compile it.
ARGUMENTS = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-g0"]

# Without a compiler or Python's headers the installation continues, and Python and NumPy do the
# work.
setup(
    ext_modules=[
        Extension(
            "ncclkv.kernels.host._compiled",
            sources=[f"{KERNELS}/c/compiled.c"],
            depends=[*glob(f"{KERNELS}/c/*.h"), *glob(f"{PROGRAMS}/*.h")],
            extra_compile_args=ARGUMENTS,
            optional=True,
        ),
    ]
)
