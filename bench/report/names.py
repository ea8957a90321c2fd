"""Names and colours of what is compared: each has one name and one colour in all pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MPI = {"MPICH": "MPICH", "Open MPI": "Open MPI", "Intel(R) MPI": "Intel MPI"}
"""Names of MPI libraries, by the beginning of the text by which they introduce themselves."""

STORE, UNKNOWN = "#1f77b4", "#bcbd22"

COLORS = {
    "ncclkv": STORE,
    "bucket": "#56b4e9",
    "one result": "#0b3c6f",
    "MPICH": "#d62728",
    "Open MPI": "#2ca02c",
    "Intel MPI": "#9467bd",
    "MPI": "#8c564b",
    "Gloo": "#ff7f0e",
    "torch NCCL": "#ff7f0e",
    "NCCL": "#2ca02c",
    "cupyx": "#9467bd",
    "copy": "#999999",
    "d[...]": "#999999",
    "bare:": "#999999",
}
"""Colours of the store, of the libraries and of bounds that nothing can beat.

Host and GPU have other libraries, and no picture has both.
"""

PLACEMENTS = ("#17becf", "#e377c2", "#006d5b", "#a65628")
"""Colours of a store's placements, which stand for no library."""


def library_of(candidate: str, libraries: Sequence[str]) -> str | None:
    """Return the library that a candidate's name contains; None for our own candidates.

    Examples
    --------
    >>> library_of("DDP on Gloo", ["MPI", "Gloo"])
    'Gloo'
    >>> library_of("torch NCCL, copies in and out", ["NCCL", "torch NCCL"])
    'torch NCCL'
    """
    found = [name for name in libraries if name in candidate]
    return max(found, key=len, default=None)


def label(library: str, versions: Mapping[str, str]) -> str:
    """Return the name of a library, and the maker's of "MPI".

    Examples
    --------
    >>> label("MPI", {"MPI": "Intel(R) MPI Library 2021.18.1 for Linux* OS"})
    'Intel MPI'
    """
    version = versions.get(library, "")
    if library == "MPI":
        return next((name for begin, name in MPI.items() if version.startswith(begin)), library)
    return library


def labelled(candidate: str, versions: Mapping[str, str]) -> str:
    """Return a candidate's name with the maker's name of its library.

    Examples
    --------
    >>> labelled("MPI, 1 MiB slices", {"MPI": "MPICH Version: 5.0.2"})
    'MPICH, 1 MiB slices'
    """
    library = library_of(candidate, list(versions))
    return candidate.replace(library, label(library, versions)) if library else candidate


def color(candidate: str, versions: Mapping[str, str]) -> str:
    """Return the colour of a candidate: of its library, or of the store.

    Examples
    --------
    >>> color("Gloo, flat 25 MiB buckets", {"Gloo": "torch 2"}) == COLORS["Gloo"]
    True
    >>> color("store, lists", {}) == color("ncclkv", {}) == COLORS["ncclkv"]
    True
    """
    library = library_of(candidate, list(versions))
    if library:
        return COLORS.get(label(library, versions), UNKNOWN)
    begins = (each for begin, each in COLORS.items() if candidate.startswith(begin))
    return next(begins, STORE)
