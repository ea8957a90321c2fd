"""Calls of every rank, compared and reported when a wait does not end.

**Digest.**  Every collective carries the call digest, without a message of its own.  On a node the
digest is the first word of a collective's header (`ncclkv.comm.shm.sequence`), compared before any
array is read.  Between nodes the first message to each peer begins with the digest
(`ncclkv.comm.messages.framing`).  Over NCCL a launch after new calls starts a barrier of the hosts
that carries the digest (`ncclkv.comm.nccl.order_check`).

**Pages.**  Each rank appends its calls to a page that its neighbours can read (`flight_recorder`,
`call_ring`).  So the page of a stopped or dead rank can be read.  The page also has the items of
the last lists without keys (`item_lists`), from which an error names the first item that differs.

**A wait.**  After 0.25 s (`looks`) a wait is on the rank's page: the awaited ranks and the begin of
the wait.  The rank then compares its neighbours' pages, and requests the reports of awaited ranks
on other nodes.  `mismatch` has this protocol as a table.  So ranks in different collectives find
the difference.  A waiting thread also shows its wait on the pages of its other stores, with the
store's name and the index of the waiting call.  Two ranks wait for each other in two stores if
neither has made the call in which the other waits.  Both ranks find this and raise (`crossing`).  A
``create`` that waits for other ranks is shown on these pages too (`ncclkv.comm.host.outside_wait`).

**Ended ranks.**  During a wait the detector (`hang`) polls, every few milliseconds, the neighbours'
processes (`ncclkv.system.processes`) and those of other hosts (`ncclkv.comm.host.liveness`).
`RankDied` describes the end of a process and the rank's last call.

**Deadline.**  The detector follows the waits from rank to rank (`waits`), and the error is about
the rank at their end.  The missing rank gets SIGUSR2, by which faulthandler prints its stacks
(`ncclkv.system.stacks`).  Ranks of other nodes send reports about their neighbours.  `stall` writes
a line before the deadline, and `dump` a file for ``ncclkv explain`` when the store breaks.
"""
