"""Three sentences about a run, from its record."""

from __future__ import annotations

from typing import Any

import pytest

from bench.report import summary

MPICH = {"MPI": "MPICH Version: 5.0.2", "Gloo": "torch 2.13.0+cpu"}
STEP = "a step of ResNet-50 (push and pull of 161 arrays, 97.5 MiB)"


def ratio(work: str, library: str | None, value: float, beside: str = "theirs") -> dict[str, Any]:
    return {"work": work, "ours": "store", "beside": beside, "library": library, "value": value}


def record(**parts: Any) -> dict[str, Any]:
    machine = {"cores": 2, "processor": "Some CPU", "nodes": 1, "devices": ["device  0 [a] Fast"]}
    return {
        "versions": {"ncclkv": "1.2.3"},
        "machine": machine,
        "ranks": 4,
        "libraries": MPICH,
        "options": {"gpu": False, "quick": False},
        "wrong": 0,
        **parts,
    }


def size(nbytes: int, ours: float, mpi: float, gloo: float) -> dict[str, Any]:
    return {"bytes": nbytes, "median": {"ncclkv": ours, "MPI": mpi, "Gloo": gloo}}


def test_a_whole_run() -> None:
    found = record(
        ratios=[
            ratio("a sum", "MPI", 3.0),
            ratio(STEP, "MPI", 1.25),
            ratio(STEP, "Gloo", 0.243),
            ratio("a step of GPT-2", "Gloo", 0.3),
        ],
        sizes=[size(8, 3.0, 2.0, 300.0), size(4096, 4.0, 5.0, 100.0), size(3 << 20, 2.0, 1.0, 9.0)],
    )
    assert summary.sentences(found) == [
        "ncclkv 1.2.3 was compared with MPICH and Gloo by 4 ranks on 2 cores of Some CPU; "
        "all numbers were right.",
        f"A{STEP[1:]} took 1.25 times MPICH's time and 0.24 of Gloo's time.",
        "Sums of ordinary arrays of 8 B to 3 MiB took 0.80 to 2.00 times MPICH's time "
        "(longer at 2 of 3 sizes, most at 3 MiB) and 0.01 to 0.22 times Gloo's time "
        "(never longer).",
    ]


def test_without_sizes_the_worst_comparison_is_told() -> None:
    step, sums = ratio(STEP, "Gloo", 2.5), ratio("a sum of 4 KiB", "MPI", 1.5)
    found = record(ratios=[step, sums])
    assert summary.sentences(found)[1:] == [
        f"A{STEP[1:]} took 2.50 times Gloo's time.",
        "A sum of 4 KiB took 1.50 times MPICH's time (store).",
    ]
    found = record(ratios=[step, ratio("a sum of 1 MiB", "Gloo", 0.5), sums])
    assert summary.sentences(found)[2] == (
        "The least favourable of 2 other comparisons: a sum of 4 KiB took 1.50 times MPICH's time "
        "(store)."
    )


def test_a_run_of_the_store_alone() -> None:
    found = record(libraries={}, ratios=[ratio("a step, traced,", None, 1.016, "untraced")])
    assert summary.sentences(found) == [
        "ncclkv 1.2.3 was measured beside no other library by 4 ranks on 2 cores of Some CPU; "
        "all numbers were right.",
        "A step, traced, took 1.016 of the time of 'untraced'.",
        summary.NOTHING,
    ]


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (
            {
                "tables": [
                    {
                        "title": "keys of 4 KiB",
                        "against": "the same",
                        "results": [
                            {"name": "the same", "median": 2.0},
                            {"name": "new", "median": 3.0},
                        ],
                    }
                ]
            },
            "Keys of 4 KiB: 'new' took 1.50 of the time of 'the same'.",
        ),
        (
            {"raw": [{"name": "all_reduce", "average_bus_bandwidth": {"bandwidth": 3.456}}]},
            "The bus bandwidth of all_reduce was 3.46 GB/s on average over sizes.",
        ),
        (
            {"memory": [{"name": "sharded", "ranks": 4, "rank": 1 << 20, "total": 3 << 20}]},
            "Stores of 4 ranks took 3 MiB, and 1 MiB on one rank (sharded).",
        ),
        (
            {"floors": [{"work": "a call", "value": 12.0, "unit": " us"}]},
            "A call: 12.000 us.",
        ),
    ],
)
def test_each_part_has_a_sentence(part: dict[str, Any], sentence: str) -> None:
    assert summary.sentences(record(**part))[1:] == [sentence, summary.NOTHING]


def test_the_first_sentence_names_what_makes_times_doubtful() -> None:
    found = record(wrong=1234, options={"gpu": True, "quick": True})
    assert summary.sentences(found)[0] == (
        "ncclkv 1.2.3 was compared with MPICH and Gloo by 4 ranks on GPUs (Fast) in a quick run, "
        "whose times are rough; 1,234 NUMBERS WERE WRONG."
    )
    found["machine"]["nodes"] = 2
    assert "4 ranks on 2 nodes, each with GPUs (Fast)" in summary.sentences(found)[0]
