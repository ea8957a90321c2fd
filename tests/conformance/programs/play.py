"""One rank's run of a program, compared with the model after every call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tests.conformance.programs import keys, other_operations, rules, transfers
from tests.conformance.programs.interpreter import Interpreter
from tests.conformance.programs.model import Model
from tests.conformance.programs.modelled_store import ModelledStore
from tests.conformance.programs.plan import Program

# Importing these is what fills the table of operations.
OPERATIONS = (keys, transfers, other_operations, rules)


def play(program: Program, size: int, open_store: Callable[..., Any]) -> None:
    """Run a program on this rank of `size`; collective.

    `open_store` takes the options of `ncclkv.create`.  What is found wrong is raised, with the
    operation and the rank in a note.
    """
    with ExitStack() as stack:
        stores = []
        for plan in program.stores:
            options: dict[str, Any] = {"update_on": plan.update_on, "root": plan.root % size}
            if plan.bucket_bytes is not None:
                options["bucket_bytes"] = plan.bucket_bytes
            kv = stack.enter_context(open_store(**options))
            stores.append(ModelledStore(kv, plan, Model(plan, size)))
        Interpreter(program, stores).run()
