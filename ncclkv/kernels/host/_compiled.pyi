"""The kernels in C, of ``c/compiled.c``.

Each but `checksum` and `short_sum` returns whether it has done its work: it leaves arrays to NumPy,
and has done nothing, when they are not C-contiguous, or, where it computes, not all float32 or all
float64 in the machine's byte order.  Arrays may lie at any address.

All raise TypeError for a wrong number of arguments or an argument of a wrong kind, and ValueError
for arrays of different lengths and for one to be written that is read-only.
"""

from collections.abc import Sequence

from ncclkv.kernels.base import Array

def total(parts: Sequence[Array], out: Array, average: bool, stream: bool, /) -> bool:
    """Sum `parts`, in their order, into `out`, which may be one of them.

    Parameters
    ----------
    parts : sequence of ndarray
        At least one.
    out : ndarray
    average : bool
        Divide the sum by the number of parts.
    stream : bool
        Write past the caches.
    """

def update(
    program: str,
    weights: Array,
    gradients: Array,
    states: Sequence[Array],
    scalars: Array,
    bounds: Array,
    /,
) -> bool:
    """Update weights and states by a program, as `ncclkv.kernels.host.update.update` describes it.

    `bounds` are those of `Segments`; ValueError for bounds outside of the weights, for scalars that
    are not a row of float64 for each segment, and for a program that C does not have.
    """

def copy(target: Array, source: Array, stream: bool, /) -> bool:
    """Copy the bytes of `source` to `target`, past the caches if `stream`; of any one dtype."""

def checksum(array: Array, block: int, /) -> int:
    """The sum of ``ncclkv.kernels.host.checksum``, of blocks of so many bytes, a multiple of 8.

    Of any dtype; an array that is not C-contiguous is a ValueError.
    """

COMPLETE: int
MOST_RANKS: int

def short_sum(
    table: bytes,
    own: int,
    place: int,
    note: int,
    entered: int,
    done: int,
    free: int,
    before: int,
    over: int,
    mark: int,
    first: int,
    second: int,
    looks: int,
    send: Array,
    receive: Array,
    average: bool,
    /,
) -> int:
    """Take part in a short sum of the ranks of a node, as far as the others do so in a moment.

    Parameters
    ----------
    table : bytes
        For each rank, `MOST_RANKS` at most, the addresses of its flags, its notes and its copy.
        They are believed: the memory must be there, and a copy as long as `send`.
    own : int
        Which of them this rank is.
    place, note, entered, done, free, before, over, mark : int
        As of ``Turn.meeting``.
    first, second : int
        This rank's note.
    looks : int
        How often to see whether the others have come, letting them run in between.
    send, receive : ndarray, shape (n,)
        Both float32 or both float64.
    average : bool

    Returns
    -------
    int
        0: nothing has been done, for there is no room for the copy yet; 1: this rank has entered,
        and others have not, or mean another call; COMPLETE: `receive` has the sum.
    """
