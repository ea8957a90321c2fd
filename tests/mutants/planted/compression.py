"""Faults in the arithmetic of compressed gradients, and in the checks of their parameters."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Selection

DECLARED = "ncclkv/compress/declared.py"
LARGEST = "ncclkv/kernels/host/largest.py"
LOW_RANK = "ncclkv/kernels/host/low_rank.py"
NARROW = "ncclkv/kernels/host/narrow.py"
ONE_BIT = "ncclkv/compress/onebit.py"

OF_LARGEST = "unit/kernels/host/test_largest.py"

MUTANTS = (
    Mutant(
        name="1bit-sends-at-its-threshold",
        file=ONE_BIT,
        old="np.greater(sums,",
        new="np.greater_equal(sums,",
        why="a gradient at the threshold, such as 0, is sent with another sign than MXNet's",
        tests=(Selection("0", "unit/compress/test_onebit.py", "at_the_threshold"),),
    ),
    Mutant(
        name="1bit-residual-without-what-is-sent",
        file=ONE_BIT,
        old="sums -= np.where(up, np.float32(1), np.float32(-1))",
        new="sums -= np.where(up, np.float32(1), np.float32(0))",
        why="the residual forgets what a negative code has sent, and the weights drift",
        tests=(Selection("0", "unit/compress/test_quantiser.py", "those_of_the_model and 1bit"),),
    ),
    Mutant(
        name="threshold-that-is-0-in-float32",
        file=DECLARED,
        old="lambda value: 0 < in_float32(value) < math.inf",
        new="lambda value: 0 < value < math.inf",
        why="every gradient of 0 is sent as a threshold of 0, and an infinite one is never reached",
        tests=(Selection("0", "unit/compress/test_declared.py", "refused_with"),),
    ),
    Mutant(
        name="half-keeps-infinity",
        file=NARROW,
        old="            left[~np.isfinite(tile)] = 0\n",
        new="",
        why="after one overflow of fp16 a residual is infinite or NaN for ever",
        tests=(Selection("0", "unit/compress/test_half.py", "sent_once"),),
    ),
    Mutant(
        name="bfloat16-rounded-up-at-a-tie",
        file=NARROW,
        old="rounded = bits >> np.uint32(16) & np.uint32(1)",
        new="rounded = bits >> np.uint32(16) | np.uint32(1)",
        why="ranks without the kernels in C send other numbers than ranks with them",
        tests=(Selection("0", "unit/kernels/host/test_narrow.py", "to_the_nearest"),),
    ),
    Mutant(
        name="topk-keeps-what-it-sends",
        file=LARGEST,
        old="    residual[found] = 0\n",
        new="",
        why="the largest gradients are sent again at each push",
        tests=(Selection("0", OF_LARGEST, "all_lengths"),),
    ),
    Mutant(
        name="topk-skips-the-largest-behind-ties",
        file=LARGEST,
        old="kept = sizes > least",
        new="kept = sizes >= least",
        why="a payload of fewer equal gradients has no place for them, and the push fails",
        tests=(Selection("0", OF_LARGEST, "all_lengths"),),
    ),
    Mutant(
        name="powersgd-divides-by-rounding",
        file=LOW_RANK,
        old="if norm == 0 or norm < LEAST_SHARE * norms[index]:",
        new="if norm == 0:",
        why="a matrix of low rank is sent more than once, and its residual grows from push to push",
        tests=(Selection("0", "unit/kernels/host/test_low_rank.py", "depends_on_others"),),
    ),
    Mutant(
        name="powersgd-keeps-the-share-of-all",
        file=LOW_RANK,
        old="np.subtract(matrix[part], shared, out=residual[part])",
        new="np.subtract(matrix[part], product, out=residual[part])",
        why="each sender takes the whole sum from its residual, so that it is taken several times",
        tests=(
            Selection("0", "unit/kernels/host/test_low_rank.py", "bits_of_the_model"),
            Selection("0", "unit/compress/test_powersgd.py", "what_is_owed"),
        ),
    ),
)
