"""Programs: the arithmetic of optimizers, for the kernels of every device.

A program NAME is a header, ``NAME.h``, with the arithmetic on one element, and a NumPy function
that makes the same bits on a chunk.  The C extension and the CUDA kernel include the header, and
define before:

``REAL``
    Type of the arithmetic.
``STATES``
    Count of states of each weight.
``NAME(x)``, ``FUNCTION``
    The name of a function, and the qualifiers before it.
``ROOT(x)``
    The square root, correctly rounded.

The header defines ``SCALARS``, the length of a row, and two functions: ``read``, which rounds a row
of doubles, and ``step``, which updates the states of an element and returns its new weight.  The
last scalars of every row are those of ``gradient.h``, which rescales, clips and decays.

The header of an optimizer that needs norms also defines ``NORMS``, their count, and two functions.
``measure`` updates the states of an element, ``MEASURED_STATES`` of them, and writes the values
whose squares are summed.
``trust`` returns the factor of a key's learning rate, the first scalar of its row, from the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.programs import lamb, lars, squares
from ncclkv.kernels.programs.adadelta import adadelta
from ncclkv.kernels.programs.adagrad import adagrad
from ncclkv.kernels.programs.adam import adam
from ncclkv.kernels.programs.adamax import adamax
from ncclkv.kernels.programs.ftml import ftml
from ncclkv.kernels.programs.ftrl import ftrl
from ncclkv.kernels.programs.gradient import COMMON
from ncclkv.kernels.programs.lion import lion
from ncclkv.kernels.programs.nadam import nadam
from ncclkv.kernels.programs.nag import nag
from ncclkv.kernels.programs.rmsprop import rmsprop
from ncclkv.kernels.programs.sgd import sgd
from ncclkv.kernels.programs.signum import signum
from ncclkv.kernels.programs.test import test

FOLDER = Path(__file__).parent
"""Directory of the headers."""

Step = Callable[[Array, Array, Arrays, Array, Sequence[float]], None]
"""``step(weights, gradients, states, scratch, scalars)`` updates weights and states in place.

All arrays are chunks in the dtype of the arithmetic; `scratch` has as many rows as
`Program.scratch`, and `scalars` is one row of the table as Python floats.  Gradients are left
unchanged, unless they are the first row of `scratch`.
"""

Measure = Callable[[Array, Array, Arrays, Array, Sequence[float]], Arrays]
"""``measure(weights, gradients, states, scratch, scalars)`` returns an array for each norm.

The squares of its elements are to be summed.  States are updated in place; weights are not.
"""

Trust = Callable[[Array, Array], Array]
"""``trust(rows, sums)`` returns the factor of each key's learning rate, in float64.

Parameters: the rows of the keys, and their sums of squares, of shape (keys, norms).
"""


class Norms(NamedTuple):
    """The norms that a program needs before its step.

    Attributes
    ----------
    sums : int
        Count of the sums of squares of a key.
    measure : callable
        `Measure`, in NumPy.
    trust : callable
        `Trust`, in NumPy.
    """

    sums: int
    measure: Measure
    trust: Trust


class Program(NamedTuple):
    """The arithmetic of an optimizer.

    Attributes
    ----------
    name : str
        Name of the header, without ``.h``.
    step : callable
        `Step`, in NumPy.
    states : tuple of int
        Counts of states for which the program is compiled.
    scalars : tuple of str
        Names of the scalars in a row, in order.
    scratch : int
        Rows of scratch memory that `step` needs.
    norms : Norms or None
    """

    name: str
    step: Step
    states: tuple[int, ...]
    scalars: tuple[str, ...]
    scratch: int
    norms: Norms | None = None


_ALL = (
    Program("sgd", sgd, (0, 1), ("learning_rate", "momentum", *COMMON), scratch=2),
    Program(
        "adam",
        adam,
        (2,),
        ("learning_rate", "beta1", "share1", "beta2", "share2", "epsilon", "keep", *COMMON),
        scratch=2,
    ),
    Program("nag", nag, (0, 1), ("learning_rate", "momentum", "ahead", *COMMON), scratch=3),
    Program(
        "rmsprop",
        rmsprop,
        (1, 3),
        ("learning_rate", "gamma1", "share", "gamma2", "epsilon", "bound", *COMMON),
        scratch=2,
    ),
    Program("adagrad", adagrad, (1,), ("learning_rate", "epsilon", *COMMON), scratch=2),
    Program("ftrl", ftrl, (2,), ("learning_rate", "lamda1", "beta", *COMMON), scratch=3),
    Program(
        "signum",
        signum,
        (0, 1),
        ("learning_rate", "momentum", "share", "decay", "keep", *COMMON),
        scratch=2,
    ),
    Program("test", test, (1,), COMMON, scratch=1),
    Program(
        "adamax", adamax, (2,), ("learning_rate", "beta1", "share", "beta2", *COMMON), scratch=2
    ),
    Program(
        "nadam",
        nadam,
        (2,),
        (
            "learning_rate",
            "beta1",
            "share1",
            "beta2",
            "share2",
            "epsilon",
            "now",
            "ahead",
            "correction",
            *COMMON,
        ),
        scratch=2,
    ),
    Program("adadelta", adadelta, (2,), ("rho", "share", "epsilon", *COMMON), scratch=3),
    Program(
        "ftml",
        ftml,
        (3,),
        (
            "learning_rate",
            "beta1",
            "share1",
            "beta2",
            "share2",
            "epsilon",
            "bias1",
            "bias2",
            *COMMON,
        ),
        scratch=2,
    ),
    Program(
        "lion",
        lion,
        (1,),
        ("learning_rate", "beta1", "share1", "beta2", "share2", *COMMON),
        scratch=3,
    ),
    Program(
        "lars",
        lars.lars,
        (0, 1),
        ("learning_rate", "momentum", "eta", "epsilon", *COMMON),
        scratch=2,
        norms=Norms(2, lars.measure, lars.trust),
    ),
    Program(
        "lamb",
        lamb.lamb,
        (2,),
        (
            "learning_rate",
            "beta1",
            "share1",
            "beta2",
            "share2",
            "epsilon",
            "corrected",
            "root",
            "lower_bound",
            "upper_bound",
            *COMMON,
        ),
        scratch=2,
        norms=Norms(2, lamb.measure, lamb.trust),
    ),
    Program(
        "squares",
        squares.squares,
        (0,),
        COMMON,
        scratch=2,
        norms=Norms(1, squares.measure, squares.trust),
    ),
)

PROGRAMS = {program.name: program for program in _ALL}
"""All programs by name; ``setup.py`` reads this list for C."""
