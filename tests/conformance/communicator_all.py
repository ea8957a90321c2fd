"""All communicator cases by name, and which of them need a second rank."""

from tests.conformance import communicator_failures, communicator_flow, communicator_memory
from tests.conformance.communicator import CASES

FAILURES = {name for name, body in CASES.items() if body.__module__.endswith("_failures")}

IN_ORDER = (
    "every_op_of_every_dtype",
    "every_length_to_all",
    "every_length_to_every_root",
    "sixteen_bit_sums_are_rounded_once",
    "averages_of_integers_go_toward_zero",
    "not_a_number_wins",
    "sums_are_the_same_bits_on_all_ranks",
    "reduce_scatter_in_and_out_of_place",
    "apply_gets_every_element_once_and_ready",
    "works_are_waited_for_in_any_order",
    "a_duplicate_has_traffic_of_its_own",
    "reduce_scatter_in_any_memory",
    "different_calls_are_waited_for_in_any_order",
)
"""Cases that show whether a `reproducible` communicator keeps rank order."""

__all__ = [
    "CASES",
    "FAILURES",
    "IN_ORDER",
    "communicator_failures",
    "communicator_flow",
    "communicator_memory",
]
