"""All communicator cases by name, and which of them need a second rank."""

from tests.conformance import (
    communicator_failures,
    communicator_memory,
    communicator_parts,
    communicator_programs,
    communicator_works,
)
from tests.conformance.communicator import CASES

FAILURES = {name for name, body in CASES.items() if body.__module__.endswith("_failures")}

IN_ORDER = (
    "every_op_of_every_dtype",
    "every_length_to_all",
    "every_length_to_every_root",
    "sixteen_bit_sums_are_rounded_once",
    "averages_of_integers_go_toward_zero",
    "nan_wins_over_numbers",
    "sums_have_equal_bits_on_all_ranks",
    "reduce_scatter_in_and_out_of_place",
    "apply_gets_every_element_once_and_ready",
    "apply_may_change_its_range",
    "works_are_waited_for_in_any_order",
    "a_duplicate_has_separate_messages",
    "reduce_scatter_in_any_memory",
    "different_calls_are_waited_for_in_any_order",
    "owners_receive_their_parts",
    "owners_of_every_dtype_and_op",
    "exchanges_of_several_steps_are_waited_for_in_any_order",
    "programs_make_several_reads",
)
"""Cases that show whether a `reproducible` communicator keeps rank order."""

SWEEPS = frozenset(
    [
        "allgather_in_any_memory",
        "broadcast_in_any_memory",
        "every_length_to_all",
        "every_length_to_every_root",
        "every_op_of_every_dtype",
        "many_programs_are_in_flight",
        "owners_of_every_dtype_and_op",
        "parts_and_messages_of_every_dtype",
        "parts_of_every_dtype_and_op",
        "programs_read_nothing_of_some_ranks",
        "programs_read_ragged_arrays",
        "reduce_scatter_in_any_memory",
    ]
)
"""Cases that take long, since they go through all lengths, dtypes or kinds of memory."""

__all__ = [
    "CASES",
    "FAILURES",
    "IN_ORDER",
    "SWEEPS",
    "communicator_failures",
    "communicator_works",
    "communicator_memory",
    "communicator_parts",
    "communicator_programs",
]
