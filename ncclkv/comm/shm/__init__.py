"""Memory that the ranks of one node have in common, and collectives through it.

**Files.**  Each rank has an anonymous file, which its neighbours open (`ncclkv.comm.shm.segment`).
`Communicator.allocate` takes arrays from the rank's own file, and ``node_shared`` from the second
half of the first rank's.  The ranks of a node make the same calls in the same order, so they get
the same memory without an exchange.  A rank that lacks memory while it seals the layout gives back
what it took (``rolling_back_node_shared``), and may try again.

**Races.**  The owner of memory that other ranks can read writes it before the owner enters a
collective.  While all ranks are inside, the owner of a slice writes the slice.  In ``init``,
``reset`` and ``load`` all ranks write the same bytes.  So no rank may write new values before all
ranks have sealed the layout.  The agreements of these verbs, of ``set_updater`` and of
``set_optimizer`` carry the ranks that have sealed it.

**Weights.**  A node holds one copy of the weights and of the optimizer's states while no code of
the user writes to them.  The conditions are an ``update_on`` of "every_rank" or "sharded", and no
function as updater.  Each rank then updates a slice.  Under "sharded" a rank has the states of its
slice in memory of its own.  ``set_updater`` of a function gives every rank weights of its own, for
good (``Layout.unshare_weights``).  In a bucket of less than 64 KiB every rank has weights of its
own, too.  Each rank makes the whole sum, and no rank waits for a second phase.

**Phases** are plain stores, whose order x86 keeps (`ncclkv.comm.shm.sequence`).  On other
processors ranks exchange messages.

**Window.**  If files are refused, the node gets a window of MPI (`ncclkv.comm.host.window`), about
10 MiB a rank.  The window holds phases, call logs and staging memory; arrays are copied through it
in halves of 4 MiB, and allgathers are messages.  The windows of a node take at most half of the
free space.  If the window is refused too, ranks exchange messages.  `ncclkv.comm.shm.setup`
chooses, and logs the reasons.

**Nodes.**  ``NCCLKV_RANKS_PER_NODE`` splits the ranks of a machine into several nodes, for tests.
Ranks compare the variable when they make a communicator (`ncclkv.comm.diagnosis.roster`).
"""
