"""Names and colours of libraries."""

from __future__ import annotations

import pytest

from bench.report.names import COLORS, UNKNOWN, color, label, labelled, library_of

INTEL = {"MPI": "Intel(R) MPI Library 2021.18.1 for Linux* OS", "Gloo": "torch 2"}


@pytest.mark.parametrize(
    ("candidate", "library"),
    [
        ("DDP on Gloo, no_sync", "Gloo"),
        ("torch NCCL, copies in and out", "torch NCCL"),
        ("NCCL", "NCCL"),
        ("store, lists", None),
    ],
)
def test_a_candidate_names_its_library(candidate, library):
    assert library_of(candidate, ["NCCL", "torch NCCL", "Gloo"]) == library


def test_mpi_has_the_name_of_its_maker():
    assert labelled("MPI, 1 MiB slices", INTEL) == "Intel MPI, 1 MiB slices"
    assert labelled("store, lists", INTEL) == "store, lists"
    assert label("MPI", {"MPI": "MVAPICH 9"}) == "MPI"
    assert label("Gloo", INTEL) == "Gloo"


def test_colours():
    assert color("MPI, whole", INTEL) == COLORS["Intel MPI"]
    assert color("store, lists", INTEL) == color("ncclkv", INTEL) == COLORS["ncclkv"]
    assert color("one result", INTEL) == COLORS["one result"]
    assert color("copy of the same bytes", INTEL) == COLORS["copy"]
    assert color("Other", {"Other": "1"}) == UNKNOWN
