"""Kernels in C, from ``c/compiled.c``.

Functions that return a bool return whether they have done the work, and `encode` returns -1 if it
has not.  They do nothing if an array is not C-contiguous, or, for arithmetic, if C does not have it
for the arrays' dtypes, or for another byte order than the machine's; NumPy then does the work.
Arrays may lie at any address.

All raise TypeError for a wrong count or kind of arguments.  They raise ValueError for arrays of
different lengths, and for a read-only array that would be written.
"""

from collections.abc import Sequence

from ncclkv.kernels.base import Array

def total(parts: Sequence[Array], out: Array, average: bool, stream: bool, /) -> bool:
    """Sum `parts`, in their order, into `out`, which may be one of them.

    Parameters
    ----------
    parts : sequence of ndarray
        At least one, all of the dtype of `out`.  Those of 16 bits are summed in float32, and `out`
        may be of float32; bfloat16 is given as uint16, with the same bits.
    out : ndarray
    average : bool
        Divide the sum by the count of parts.
    stream : bool
        Write with non-temporal stores.
    """

def update(
    program: str,
    weights: Array,
    gradients: Array,
    states: Sequence[Array],
    scalars: Array,
    bounds: Array,
    master: Array | None,
    /,
) -> bool:
    """Update weights and states by a program; parameters as of `Kernels.update`.

    `weights` and `gradients` of bfloat16 are given as uint16, with the same bits.  `bounds` are
    those of `Segments`.  Raises ValueError for bounds outside of the weights, for scalars that are
    not a row of float64 for each segment, and for a program that C does not have.
    """

def measure(
    program: str,
    weights: Array,
    gradients: Array,
    states: Sequence[Array],
    scalars: Array,
    bounds: Array,
    sums: Array,
    master: Array | None,
    /,
) -> bool:
    """Add a program's sums of squares to `sums`; parameters as of `Kernels.measure`.

    `bounds`, and bfloat16, are given as to `update`.  Raises ValueError as `update`, for sums that
    are not a row of float64 for each segment, and for a program without norms.
    """

def copy(target: Array, source: Array, stream: bool, /) -> bool:
    """Copy the bytes of `source` to `target`, with non-temporal stores if `stream` is set."""

def checksum(array: Array, block: int, /) -> int:
    """Return the checksum of ``ncclkv.kernels.host.checksum``, for an array of any dtype.

    `block` is the length of its blocks in bytes, a multiple of 8.  Raises ValueError for an array
    that is not C-contiguous.
    """

COMPLETE: int
MAX_RANKS: int

def cast(target: Array, source: Array, /) -> bool:
    """Convert as ``astype`` does, between float32 and a dtype of 16 bits.

    bfloat16 is given as uint16, with the same bits.
    """

def encode(
    codec: str, gradients: Array, residual: Array, payload: Array, threshold: float, /
) -> int:
    """Encode gradients of float32; parameters as of ``ncclkv.compress.base.Codec.encode``.

    Returns
    -------
    int
        The count of residuals beyond the codec's bound; -1: nothing was done, because C does not
        have the codec, or not for such arrays.
    """

def count_levels(levels: Array, payloads: Sequence[Array], counts: Array, /) -> bool:
    """Set `counts` to the sums of the levels of the payloads' codes.

    Parameters
    ----------
    levels : ndarray of uint16, shape (256, 4) or (256, 8)
        For each byte, the level of each of its codes.
    payloads : sequence of ndarray of uint8
        At least one; each has a code for each of the `counts`.
    counts : ndarray of uint16
        No sum may have more than 16 bits.
    """

def scale_counts(counts: Array, offset: float, factor: float, out: Array, /) -> bool:
    """Set `out`, of float32, to ``(counts + offset) * factor``; counts are of uint16."""

def pack_counts(counts: Array, packed: Array, width: int, /) -> bool:
    """Pack counts of uint16 into 2, 4 or 8 bits each; parameters as of ``Codec.pack_counts``."""

def unpack_counts(packed: Array, counts: Array, width: int, /) -> bool:
    """Set `counts` to those in `packed`, the opposite of `pack_counts`."""

def narrow_with_rest(gradients: Array, residual: Array, words: Array, /) -> bool:
    """Round sums to 16 bits; parameters as of ``narrow.narrow_with_rest``."""

def take_largest(gradients: Array, residual: Array, payload: Array, /) -> bool:
    """Move the largest sums to a payload; parameters as of ``largest.take_largest``.

    Raises MemoryError, before any array is written, and ValueError for a payload that is not of 8
    bytes for each of at most all elements.
    """

def add_largest(payload: Array, sums: Array, /) -> bool:
    """Add a payload to `sums`, of float32; parameters as of ``largest.add_largest``.

    Raises ValueError for an index that `sums` does not have; values before it are added.
    """

def orthonormalise(rows: Array, row_count: int, /) -> bool:
    """Make rows orthonormal, as ``low_rank.orthonormalise``; they are `row_count` rows.

    Raises MemoryError, before any row is written, and ValueError for rows of unequal lengths.
    """

def multiply(
    left: Array,
    right: Array,
    rank: int,
    matrix: Array,
    residual: Array | None,
    senders: float,
    average: bool,
    /,
) -> bool:
    """Set `matrix` and `residual` from a product; parameters as of ``low_rank.multiply``.

    `rank` is the count of rows of `left` and of `right`.  Raises ValueError for arrays whose
    lengths do not fit each other.
    """

def short_sum(
    table: bytes,
    rank: int,
    index: int,
    previous: int,
    digest: int,
    first: int,
    second: int,
    polls: int,
    send: Array,
    receive: Array,
    average: bool,
    /,
) -> int:
    """Take part in a short sum of the ranks of a node, as far as their flags allow now.

    Parameters
    ----------
    table : bytes
        For each rank, `MAX_RANKS` at most, the addresses of its flags, its headers and its copy.
        The addresses are not checked; each copy must be as long as `send`.
    rank : int
        Index of this rank in the table.
    index : int
        Index of the collective on this node, from 1: `CollectiveSlot.index`.
    previous : int
        Index of the collective that had the staging memory before; 0 if there was none.
    digest, first, second : int
        Words of this rank's header.
    polls : int
        Count of polls of the other ranks' flags, with a yield of the processor between two polls.
    send, receive : ndarray, shape (n,)
        Both float32 or both float64.
    average : bool

    Returns
    -------
    int
        0: nothing was done, because the memory of the copy is still in use; 1: this rank has
        entered, and another rank has not, or has another header; COMPLETE: `receive` has the sum.
    """

def append_call(page: memoryview, index: int, text: int, term: int, digest: int, /) -> int:
    """Append a call to a page, as ``ncclkv.comm.diagnosis.call_ring.append_call``.

    Raises ValueError for a page that is too short or not aligned to 8 bytes, and for an index
    below 1.
    """

def set_clock(nanoseconds: int | None, /) -> None:
    """Set the time that `short_sum` and `append_call` write, for the threads of this process.

    None restores the clock of `time.monotonic_ns`.  Raises ValueError for a negative time.
    """
