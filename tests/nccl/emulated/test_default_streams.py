"""Layer 3b: pushes of several threads where each thread has a default stream of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nccl.emulated import jobs

pytestmark = pytest.mark.limit(60)


@pytest.mark.parametrize(
    ("streams", "per_thread"), [("own", "0"), ("own", "1"), ("default", "0"), ("default", "1")]
)
def test_no_sum_is_wrong(streams: str, per_thread: str, tmp_path: Path) -> None:
    """Check sums of 40 and 1 of each rank; where no event orders the threads, a refusal."""
    ended = jobs.start(
        "default_streams.py",
        streams,
        ranks=2,
        mark=tmp_path / "mark",
        limit=50,
        CUPY_CUDA_PER_THREAD_DEFAULT_STREAM=per_thread,
    )
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    found = jobs.lines(ended)
    assert set(found) == {0, 1}
    for rank, ((sums, *texts),) in found.items():
        if (streams, per_thread) != ("default", "1"):
            assert [sums, *texts] == ["[[80.0], [2.0]]", "[]"]
            continue
        assert sums == "[[0.0], [0.0]]"
        for key in "ab":
            words = f"rank {rank} of 2: thread {key!r} called the store while CUDA's default stream"
            assert words in texts[0]
        assert "enter 'with cupy.cuda.Stream():' in each thread" in texts[0]
