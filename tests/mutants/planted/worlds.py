"""Faults in the order of steps, which seeded worlds find."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Selection

ALLREDUCE = "ncclkv/comm/shm/allreduce.py"
CROSSING = "ncclkv/comm/diagnosis/crossing.py"
STAGING = "ncclkv/comm/shm/staging.py"
THREADS = "ncclkv/comm/host/threads.py"


def _found_by(name: str) -> tuple[Selection, ...]:
    """Return the test of the seed that is kept for a fault, and that of many seeds.

    A change of the package moves the points of a seed, which may then no longer find its fault.
    """
    return tuple(Selection("0", "world/test_seeds.py", each) for each in (name, "in_a_row"))


MUTANTS = (
    Mutant(
        name="a-crossing-proven-by-times",
        file=CROSSING,
        old="""        if report is None or report.other_wait is None or report.made >= call_index:
            continue
        other = report.other_wait
        here = made.get(other.store, other.call_index)
        if other.store.startswith(CREATION):
            here = creations[other.store]
        if here < other.call_index and {mine.name, EVERYONE}.intersection(other.names):
""",
        new="""        if report is None or report.other_wait is None:
            continue
        other = report.other_wait
        if other.age < 0.5 and {mine.name, EVERYONE}.intersection(other.names):
""",
        why="a rank that lost its processor between two steps of a wait ends a valid program",
        tests=_found_by("a_crossing_proven_by_times"),
    ),
    Mutant(
        name="a-launch-after-the-record-of-its-block",
        file="ncclkv/store/overlaps.py",
        old="""                block.launch_rest()
                self._calls.record("end of an overlap", wanted, (), found.end)
""",
        new="""                self._calls.record("end of an overlap", wanted, (), found.end)
                block.launch_rest()
""",
        why="ranks launch one bucket with different digests: a valid program ends",
        tests=_found_by("a_launch_after_the_record_of_its_block"),
    ),
    Mutant(
        name="a-lost-wake-up",
        file=THREADS,
        old="                changes.happened.wait(_PAUSE_SECONDS)\n            self._seen",
        new="                changes.happened.wait()\n            self._seen",
        why="a rank sleeps for ever after a change that it has not seen",
        tests=_found_by("a_lost_wake_up"),
    ),
    Mutant(
        name="a-flag-before-its-data",
        file="ncclkv/comm/shm/small_allreduce.py",
        old="""            copies[small.node.index][...] = self._send
            slot.write_header(small.packed)
            slot.publish(ENTERED)
""",
        new="""            slot.write_header(small.packed)
            slot.publish(ENTERED)
            copies[small.node.index][...] = self._send
""",
        why="a small sum adds what a neighbour's memory held before",
        tests=_found_by("a_flag_before_its_data"),
    ),
    Mutant(
        name="a-chunk-published-before-it-is-copied",
        file=ALLREDUCE,
        old="""                self._copy_in(chunk)
                phase += 1
                slot.publish(phase)
""",
        new="""                phase += 1
                slot.publish(phase)
                self._copy_in(chunk)
""",
        why="a long sum adds what a neighbour's memory held before",
        tests=_found_by("a_chunk_published_before_it_is_copied"),
    ),
    Mutant(
        name="a-slot-used-again-too-early",
        file=STAGING,
        old="        return position, previous\n",
        new="        return position, None\n",
        why="a rank overwrites an array that a neighbour still reads",
        tests=_found_by("a_slot_used_again_too_early"),
    ),
    Mutant(
        name="a-half-used-again-too-early",
        file=STAGING,
        old="        yield [] if previous is None else previous.unfinished()\n",
        new="",
        why="a rank overwrites a chunk that a neighbour still reads",
        tests=_found_by("a_half_used_again_too_early"),
    ),
    Mutant(
        name="a-mapped-array-given-back-too-early",
        file="ncclkv/comm/shm/reduce_scatter.py",
        old="""        if offset is not None:
            yield slot.stragglers(DONE)
""",
        new="",
        why="the program overwrites an array that a neighbour still reads",
        tests=_found_by("a_mapped_array_given_back_too_early"),
    ),
    Mutant(
        name="sums-given-back-before-the-neighbours-have-written",
        file=ALLREDUCE,
        old="        if plan.receives is not None and not slot.all_reached(DONE):\n",
        new="        if plan.receives is None and not slot.all_reached(DONE):\n",
        why="a pull returns a sum of which a part is still missing",
        tests=_found_by("sums_given_back_before_the_neighbours_have_written"),
    ),
    Mutant(
        name="a-stale-number-of-a-collective",
        file="ncclkv/comm/shm/sequence.py",
        old="        position, value = self._position, self._base + phase\n        for _, flags",
        new="        position, value = self._position, phase\n        for _, flags",
        why="the flag of an earlier collective counts for a later one",
        tests=_found_by("a_stale_number_of_a_collective"),
    ),
    Mutant(
        name="a-launch-outside-the-order",
        file="ncclkv/engine/ordered_launch.py",
        old="""            if self._waiting[state.bucket.index]:
                return
            self._launched += 1
""",
        new="""            if self._waiting[state.bucket.index]:
                continue
            self._launched += 1
""",
        why="ranks launch buckets in different orders",
        tests=_found_by("a_launch_outside_the_order"),
    ),
    Mutant(
        name="a-residue-of-an-exception",
        file="ncclkv/engine/pushes.py",
        old="        self._waiting.difference_update(dropped)\n",
        new="        self._waiting.difference_update(() if keys is None else dropped)\n",
        why="pushes that NonFinite has dropped are reduced by the next flush",
        tests=_found_by("a_residue_of_an_exception"),
    ),
    Mutant(
        name="an-engine-that-stays-with-an-ended-thread",
        file="ncclkv/comm/messages/progress.py",
        old="        self._lent += 1\n",
        new="        self._thread, self._lent = concurrency.get_ident(), self._lent + 1\n",
        why="a thread of another rank gets the identity, and advances this rank's collectives",
        tests=_found_by("an_engine_that_stays_with_an_ended_thread"),
    ),
    Mutant(
        name="messages-in-another-order",
        file=THREADS,
        old="                self._copy(box.popleft())\n",
        new="                self._copy(box.pop())\n",
        why="a receiver takes a later message for an earlier one",
        tests=_found_by("messages_in_another_order"),
    ),
    Mutant(
        name="a-finished-rank-taken-for-a-lost-one",
        file="ncclkv/comm/diagnosis/hang.py",
        old="""            lost |= absent - finished
""",
        new="""            lost |= absent
""",
        why="a rank that waits for a paused one finds that a third has ended its program",
        tests=_found_by("a_finished_rank_taken_for_a_lost_one"),
    ),
    Mutant(
        name="requests-used-up-in-a-burst",
        file="ncclkv/comm/diagnosis/looks.py",
        old="""        due = waited + LONG_SECONDS
        if not self.is_request_due(waited):
            return self._replace(made=self.made + 1, due=due)
        requests = self.requests + 1
        request_due = due if requests < _CLOSE_REQUESTS else 2 * waited
""",
        new="""        due = self.due + LONG_SECONDS
        if not self.is_request_due(waited):
            return self._replace(made=self.made + 1, due=due)
        requests = self.requests + 1
        request_due = due if requests < _CLOSE_REQUESTS else float("inf")
""",
        why="ranks that cross between nodes after a pause wait until their deadline",
        tests=(Selection("0", "unit/comm/diagnosis/test_hang.py", "requests"),),
    ),
)
