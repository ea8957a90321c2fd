"""The cost model of a collective, and the bucket size that follows from it."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ncclkv.table.cost import MIB, START_UP_SHARE, CostModel, Sizing, fit
from tests.harness.extent import examples

BYTES = [64 * 1024 * 4**number for number in range(6)]

models = st.builds(CostModel, st.floats(1e-6, 1e-2), st.floats(1e7, 1e12))
sizes = st.lists(st.sampled_from(BYTES), min_size=2, max_size=6, unique=True)
few = settings(max_examples=examples(300), deadline=None, derandomize=True)


@few
@given(models, sizes)
def test_a_fit_of_exact_times_finds_their_model(model: CostModel, of: list[int]) -> None:
    # A fit cannot find a latency or bandwidth that rounding errors of the other term hide.
    assume(model.latency_s > 1e-5 * min(of) / model.bytes_per_s)
    assume(max(of) / model.bytes_per_s > 1e-5 * model.latency_s)
    found = fit([(nbytes, model.seconds(nbytes)) for nbytes in of])
    assert found is not None
    assert found.latency_s == pytest.approx(model.latency_s, rel=1e-3)
    assert found.bytes_per_s == pytest.approx(model.bytes_per_s, rel=1e-3)


@few
@given(models, st.lists(st.floats(0.95, 1.05), min_size=6, max_size=6))
def test_a_fit_of_noisy_times_is_near_all_times(model: CostModel, noise: list[float]) -> None:
    points = [(n, model.seconds(n) * factor) for n, factor in zip(BYTES, noise, strict=True)]
    assume(model.seconds(BYTES[-1]) > 2 * model.seconds(BYTES[0]))
    found = fit(points)
    assert found is not None
    # The fit's relative errors are at most those of the true model.
    errors = [sum((each.seconds(n) / t - 1) ** 2 for n, t in points) for each in (found, model)]
    assert errors[0] <= errors[1] * (1 + 1e-6) + 1e-12


@few
@given(st.lists(st.tuples(st.sampled_from(BYTES), st.floats(1e-7, 1e3)), min_size=1, max_size=8))
def test_a_fit_of_random_numbers_is_a_model_or_none(points: list[tuple[int, float]]) -> None:
    found = fit(points)
    if found is not None:
        assert found.latency_s >= 0
        assert found.bytes_per_s > 0
        assert MIB <= found.bucket_bytes() <= 64 * MIB


def test_times_that_do_not_grow_give_no_model() -> None:
    assert fit([(BYTES[0], 0.5)]) is None
    assert fit([(BYTES[0], 0.5), (BYTES[1], 0.5)]) is None
    assert fit([(BYTES[0], 0.5), (BYTES[1], 0.1)]) is None


def test_times_that_grow_faster_than_the_bytes_give_no_latency() -> None:
    found = fit([(1000, 0.001), (2000, 0.004)])
    # The fit of b * 1000 = 0.001 and b * 2000 = 0.004, in relative errors.
    assert found == CostModel(0.0, pytest.approx(1.25e12 / 1.5e6))
    assert found is not None
    assert found.bucket_bytes() == MIB


@few
@given(models)
def test_the_size_is_the_least_that_hides_the_latency(model: CostModel) -> None:
    size = model.bucket_bytes()
    assert size in [MIB << power for power in range(7)]

    def hidden(nbytes: int) -> bool:
        return model.latency_s <= START_UP_SHARE * nbytes / model.bytes_per_s * (1 + 1e-9)

    assert hidden(size) or size == 64 * MIB
    assert size == MIB or not hidden(size // 2)


@pytest.mark.parametrize(
    ("latency_s", "bytes_per_s", "mib"),
    [(0.0, 1e9, 1), (60e-6, 3e9, 4), (1e-3, 1e9, 32), (1e-3, 1e10, 64), (1.0, 1e12, 64)],
)
def test_sizes_of_example_models(latency_s: float, bytes_per_s: float, mib: int) -> None:
    assert CostModel(latency_s, bytes_per_s).bucket_bytes() == mib * MIB


def test_text_of_a_sizing() -> None:
    assert "bucket_bytes='auto'" in str(Sizing(0))
    text = str(Sizing(4 * MIB, CostModel(latency_s=0.0005, bytes_per_s=MIB * 1000.0)))
    assert text.startswith("bucket_bytes=4194304 and predictions")
    assert text.endswith("takes 0.500 ms and 1.000 ms a MiB")
