"""Closing, leaving, pickling, and calls from another thread."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

import ncclkv.optimizer as optimizer
from ncclkv.errors import UsageError
from tests.conformance.expect import check_words, full, intact, probed, refused, same
from tests.conformance.registry import case
from tests.conformance.stores import Stores


def collective_calls(kv: Any) -> dict[str, Callable[[], Any]]:
    """Return every verb, as a call that is valid on an open `probed` store."""
    return {
        "init": lambda: kv.init(7, full(0)),
        "push": lambda: kv.push(3, full(0)),
        "pull": lambda: kv.pull(3, out=full(0)),
        "local pull": lambda: kv.pull(3, local=True),
        "pushpull": lambda: kv.pushpull(3, full(0)),
        "broadcast": lambda: kv.broadcast(7, full(0), full(0)),
        "reset": lambda: kv.reset(3, full(0)),
        "set_updater": lambda: kv.set_updater(lambda key, grad, stored: None),
        "set_optimizer": lambda: kv.set_optimizer(optimizer.SGD()),
        "wait": lambda: kv.wait(),
        "barrier": lambda: kv.barrier(),
        "group": lambda: kv.group().__enter__(),
        "save": lambda: kv.save("checkpoints"),
        "load": lambda: kv.load("checkpoints"),
        "save_optimizer_states": lambda: kv.save_optimizer_states("states"),
        "load_optimizer_states": lambda: kv.load_optimizer_states("states"),
        "value": lambda: kv.value(3),
        "grad_view": lambda: kv.grad_view(3),
        "overlap": lambda: kv.overlap().__enter__(),
        "allreduce": lambda: kv.allreduce(full(0)),
        "allgather": lambda: kv.allgather(full(0)),
        "broadcast_object": lambda: kv.broadcast_object(0),
        "allgather_object": lambda: kv.allgather_object(0),
    }


@case()
def close_twice(create: Stores) -> None:
    kv = probed(create)
    kv.close()
    kv.close()


@case()
def every_verb_after_close(create: Stores) -> None:
    kv = probed(create)
    kv.close()
    for name, call in collective_calls(kv).items():
        try:
            call()
        except UsageError as error:
            check_words(error, "closed", "create", f"rank {kv.rank}")
        else:
            raise AssertionError(f"{name} after close was not refused")


@case()
def rank_and_type_after_close(create: Stores) -> None:
    kv = probed(create)
    rank, size = kv.rank, kv.num_workers
    kv.close()
    assert (kv.rank, kv.num_workers, kv.type) == (rank, size, create.name)


@case()
def with_statement_closes(create: Stores) -> None:
    with create() as kv:
        kv.init(3, full(2))
        kv.push(3, full(1))
    with refused(kv, UsageError, "closed"):
        kv.pull(3)


@case()
def arrays_taken_before_close_stay(create: Stores) -> None:
    kv = probed(create)
    given = kv.pull(3)
    kv.close()
    del kv
    gc.collect()
    same(given, 2)


@case()
def pickling_is_refused(create: Stores) -> None:
    kv = probed(create)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with refused(kv, UsageError, "pickle", "create"):
            attempt(kv)
    intact(kv)


@case()
def another_thread_is_refused(create: Stores) -> None:
    kv = probed(create)
    for name, call in collective_calls(kv).items():
        errors: list[BaseException] = []

        def attempt(call: Callable[[], Any] = call, errors: list[BaseException] = errors) -> None:
            try:
                call()
            except UsageError as error:
                errors.append(error)

        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join(10)
        assert errors, f"{name} from another thread was not refused"
        check_words(errors[0], "thread", f"rank {kv.rank}")
        # Such a block allows other threads these verbs alone; its own thread opens the block.
        assert ("push inside kv.overlap()" in str(errors[0])) == (name in ("push", "grad_view"))
        assert ("or open kv.overlap() in" in str(errors[0])) == (name == "overlap")
    intact(kv)


@case()
def a_verb_of_later_versions_is_not_supported(create: Stores) -> None:
    kv = probed(create)
    with pytest.raises(NotImplementedError) as caught:
        kv.row_sparse_pull(3, out=full(0), row_ids=full(0, (1,)))
    assert isinstance(caught.value, UsageError)
    check_words(caught.value, "row_sparse_pull")
    intact(kv)
