"""Work of all ranks side by side: results, failures, and the end of the others' work."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from ncclkv.comm.host import threads
from ncclkv.errors import CheckpointError
from ncclkv.store.all_ranks import run_on_all_ranks
from ncclkv.store.single_rank import FailedOnRank
from ncclkv.testing import run_ranks


def test_results_of_works_of_different_lengths() -> None:
    def body() -> None:
        comm = threads.world()

        def work() -> Generator[None, None, int]:
            for _ in range(3 * comm.rank):
                yield
            return 10 * comm.rank

        assert run_on_all_ranks(comm, "save", work()) == [0, 10, 20]
        comm.close()

    run_ranks(3, body, timeout=20)


def test_a_failure_is_raised_on_all_ranks_and_ends_the_others_work() -> None:
    parts, ended = [0] * 3, [False] * 3

    def body() -> None:
        comm = threads.world()

        def work() -> Generator[None, None, None]:
            try:
                while True:
                    yield
                    parts[comm.rank] += 1
                    if comm.rank > 0 and parts[comm.rank] == 2:
                        raise OSError(28, "No space left on device", f"/disk-of-{comm.rank}")
            finally:
                ended[comm.rank] = True

        with pytest.raises(FailedOnRank) as caught:
            run_on_all_ranks(comm, "save", work())
        failure = caught.value.failure
        assert type(failure) is CheckpointError
        text = str(failure)
        assert text.startswith("save on rank 1 of 3 (host "), text
        assert text.endswith("): /disk-of-1: No space left on device"), text
        assert isinstance(failure.__cause__, OSError) == (comm.rank == 1)
        comm.close()

    run_ranks(3, body, timeout=20)
    assert parts == [2, 2, 2]
    assert all(ended)
