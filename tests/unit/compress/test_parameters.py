"""The dict that a user gives: defaults, aliases, and the text of each error."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from ncclkv.compress.parameters import complete_parameters
from ncclkv.compress.registry import codec_of
from ncclkv.compress.twobit import TwoBit
from ncclkv.errors import UnknownArgument, UsageError

TYPES = "1bit, 2bit, fp16, bf16, topk, powersgd"

DEFAULTS = [
    {"type": "1bit", "threshold": 0.5, "scope": "rank"},
    {"type": "2bit", "threshold": 0.5, "scope": "rank"},
    {"type": "fp16", "error_feedback": False, "scope": "rank"},
    {"type": "bf16", "error_feedback": False, "scope": "rank"},
    {"type": "topk", "ratio": 0.01, "scope": "rank"},
    {
        "type": "powersgd",
        "matrix_approximation_rank": 1,
        "start_powerSGD_iter": 10,
        "min_compression_rate": 2.0,
        "use_error_feedback": True,
        "warm_start": True,
        "random_seed": 0,
        "scope": "rank",
    },
]


@pytest.mark.parametrize("expected", DEFAULTS, ids=lambda each: each["type"])
def test_a_type_alone_has_all_defaults(expected: dict[str, Any]) -> None:
    found = complete_parameters({"type": expected["type"]})
    assert found == expected
    assert [*found] == [*expected]
    assert complete_parameters(found) == found


def test_what_is_given_is_left_as_it_was() -> None:
    given = MappingProxyType({"scope": "node", "threshold": "2.0", "type": np.str_("2bit")})
    found = complete_parameters(given)
    assert found == {"type": "2bit", "threshold": 2.0, "scope": "node"}
    assert type(found["type"]) is str
    assert given["threshold"] == "2.0"
    codec = codec_of(found)
    assert isinstance(codec, TwoBit)
    assert codec.threshold == 2


def test_a_rank_is_the_rank_of_the_matrices() -> None:
    short = complete_parameters({"type": "powersgd", "rank": np.int32(4)})
    assert short == complete_parameters({"type": "powersgd", "matrix_approximation_rank": 4})
    assert "rank" not in short


WRONG: list[tuple[Any, str]] = [
    ("2bit", """args='2bit' is not a dict; give one such as {"type": "2bit"}"""),
    ("fp16", """args='fp16' is not a dict; give one such as {"type": "fp16"}"""),
    (None, """args=None is not a dict; give one such as {"type": "2bit"}"""),
    ([("type", "2bit")],
     """args=[('type', '2bit')] is not a dict; give one such as {"type": "2bit"}"""),
    ({}, f"""args has no 'type'; give one such as {{"type": "2bit"}}, or one of {TYPES}"""),
    ({"type": "fp-16"}, f"args: type 'fp-16' is unknown; did you mean 'fp16'? use one of {TYPES}"),
    ({"type": "float16"},
     f"args: type 'float16' is unknown; did you mean 'fp16'? use one of {TYPES}"),
    ({"type": "PowerSGD"},
     f"args: type 'PowerSGD' is unknown; did you mean 'powersgd'? use one of {TYPES}"),
    ({"type": None}, f"args: type None is not a str; use one of {TYPES}"),
    ({"type": ["2bit"]}, f"args: type ['2bit'] is not a str; use one of {TYPES}"),
    ({"type": "2bit", "threshold": 0},
     "args: 2bit: threshold=0 is not a finite number above 0 in float32, such as 0.5; give one"),
    ({"type": "1bit", "threshold": "high"},
     "args: 1bit: threshold='high' is not a finite number of float32, such as 0.5; give one"),
    ({"type": "2bit", "scope": "host"},
     "args: 2bit: scope 'host' is unknown; use one of rank, node"),
    ({"type": "fp16", "error_feedback": 1},
     "args: fp16: error_feedback=1 is not a bool; give True or False"),
    ({"type": "topk", "ratio": 1.5},
     "args: topk: ratio=1.5 is not a number above 0 and at most 1, such as 0.01; give one"),
    ({"type": "powersgd", "rank": 0},
     "args: powersgd: rank=0 is not an int of 1 or more; give one"),
    ({"type": "powersgd", "random_seed": -1},
     "args: powersgd: random_seed=-1 is not an int of 0 or more; give one"),
    ({"type": "powersgd", "min_compression_rate": 0},
     "args: powersgd: min_compression_rate=0 is not a finite number above 0 in float32, such as "
     "0.5; give one"),
    ({"type": "powersgd", "rank": 2, "matrix_approximation_rank": 2},
     "args: powersgd: 'rank' and 'matrix_approximation_rank' are one parameter; give one of them"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text"), WRONG, ids=lambda each: str(each)[:40])
def test_an_error_says_what_was_given_and_what_is_allowed(given: Any, text: str) -> None:
    with pytest.raises(UsageError) as error:
        complete_parameters(given, "args")
    assert str(error.value) == text


UNKNOWN: list[tuple[dict[Any, Any], str]] = [
    ({"type": "2bit", "treshold": 2.0},
     "args: 2bit has no parameter 'treshold'; did you mean 'threshold'? Valid: threshold, scope"),
    ({"type": "fp16", "threshold": 0.5},
     "args: fp16 has no parameter 'threshold'; Valid: error_feedback, scope"),
    ({"type": "topk", "ratio": 0, 3: 1}, "args: topk has no parameter 3; Valid: ratio, scope"),
    ({"type": "powersgd", "ranks": 1},
     "args: powersgd has no parameter 'ranks'; did you mean 'rank'? Valid: "
     "matrix_approximation_rank, start_powerSGD_iter, min_compression_rate, use_error_feedback, "
     "warm_start, random_seed, scope, rank"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text"), UNKNOWN, ids=lambda each: str(each)[:40])
def test_an_unknown_parameter_is_refused_with_the_nearest(given: Any, text: str) -> None:
    with pytest.raises(UnknownArgument) as error:
        complete_parameters(given, "args")
    assert str(error.value) == text
