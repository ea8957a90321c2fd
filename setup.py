"""The kernels in C, which are optional: all else is in ``setup.cfg``."""

from glob import glob

from setuptools import Extension, setup

KERNELS = "ncclkv/kernels/host"

setup(
    ext_modules=[
        Extension(
            "ncclkv.kernels.host._compiled",
            sources=[f"{KERNELS}/c/compiled.c"],
            depends=glob(f"{KERNELS}/c/*.h"),
            # No two operations become one with a single rounding: the bits are to be NumPy's.
            extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off", "-Wall", "-Wextra"],
            # Without a compiler or Python's headers the installation goes on, and NumPy does it.
            optional=True,
        )
    ]
)
