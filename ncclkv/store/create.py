"""Create: makes a store from a name and options."""

from __future__ import annotations

from typing import Any, Literal, cast

from ncclkv import env
from ncclkv.arguments import check_known, check_length, known_arguments
from ncclkv.errors import UsageError
from ncclkv.store.backends import REFUSED
from ncclkv.store.factories import FACTORIES
from ncclkv.store.kvstore import KVStore
from ncclkv.store.options import Options
from ncclkv.store.plugin import KVStoreBase
from ncclkv.store.running import Creating
from ncclkv.system import log
from ncclkv.table.cost import DEFAULT_BUCKET_BYTES
from ncclkv.typing import MissingPolicy, NonfinitePolicy, Placement


@known_arguments("create")
def create(
    name: str = "local",
    *,
    comm: Any = None,
    update_on: Placement = "every_rank",
    root: int = 0,
    bucket_bytes: int | Literal["auto"] = DEFAULT_BUCKET_BYTES,
    timeout: float | None = None,
    missing: MissingPolicy = "error",
    nonfinite: NonfinitePolicy = "ignore",
    verify_every: int = 0,
    repair: bool = False,
    reproducible: bool = False,
) -> KVStore:
    """Create a store; collective over its ranks.

    ===========================================  =================================================
    name, in any case                            ranks and memory
    ===========================================  =================================================
    local, local_update_cpu,                     this process alone; host memory
    local_allreduce_cpu
    device, local_allreduce_device               this process alone; its GPU's memory, if it has one
    nccl, dist_device_sync, dist_sync_device     all ranks; GPU memory, over NCCL
    dist_sync                                    all ranks; host memory
    dist                                         all ranks; as ``nccl`` when every rank has a GPU of
                                                 its own, else as ``dist_sync``
    threads                                      the ranks of `ncclkv.testing.run_ranks`
    a class registered by KVStoreBase.register   its own; it takes no options
    dist_async, dist_async_device,               `NotSupported`: collectives are synchronous
    dist_device_async
    ===========================================  =================================================

    Inside ``run_ranks`` the ranks of ``dist`` and ``dist_sync`` are its threads.

    Parameters
    ----------
    name : str
    comm : mpi4py.MPI.Intracomm or Communicator, optional
        The ranks of a ``dist`` store; by default all.  The store communicates on a
        duplicate of it.
    update_on : {"every_rank", "root", "sharded"}
        Where updaters run: on every rank with the same sum, or on one rank whose values are
        broadcast by the next pull.  ``"sharded"``: each rank updates a part of the values, and has
        the optimizer states of this part alone; the next pull gathers the parts.
    root : int
        The rank of ``update_on="root"``; also the rank whose values `repair` gives to all.
    bucket_bytes : int or "auto"
        Keys share collectives of at most so many bytes; 0: each key has its own.
        ``"auto"``: the ranks measure collectives for about a second, and choose a power of two from
        1 to 64 MiB at which latency is a small part of the time.  A single rank keeps the default,
        25 MiB.  ``explain_plan()`` and ``repr`` show the choice.
    timeout : float, optional
        Seconds that a wait for other ranks may take.  By default those of `comm`, when that is a
        Communicator, and of ``run_ranks`` inside it; else ``NCCLKV_TIMEOUT``, or 300.
    missing : {"error", "zeros"}
        The treatment of a key that not all ranks have pushed: `OrderMismatch`, or zeros from the
        ranks that have not pushed it.  In place of zeros, a key of op max, min or prod gets the
        value that changes no result; for prod this value is 1.  With ``"zeros"`` an optimizer
        uses its hyperparameters as they are at the flush.
    nonfinite : {"ignore", "raise", "skip_step"}
        The treatment of a push that holds NaN or infinity on a rank: no check; `NonFinite` on
        every rank; or no rank applies any push of that flush.  On a GPU an optimizer that counts
        its updates also counts the skipped updates.
    verify_every : int
        Count of calls between two comparisons of values; 0: never.  Calls that flush and read
        count: pull, pushpull, broadcast, a group with pulls, wait, barrier.  After such a call the
        ranks compare the values they hold of its keys, or of all keys, and the arrays they have
        pulled, by checksums of their bits.  Pulled arrays are compared if each rank has pulled them
        in the key's own dtype.  A difference raises `Divergence` on every rank, with the keys and
        the ranks outside the majority.  A value of which all ranks share one copy, as on one node
        without a function as updater, is not compared.  On a GPU the host waits at each comparison.
    repair : bool
        Where values differ, give all ranks the root's values and optimizer state, with a line in
        the log, instead of raising `Divergence`.  The state of a function as updater stays as it
        is.
    reproducible : bool
        Make sums over ranks in rank order, whatever the machines, the sizes and the library: the
        bits of NumPy's sum of rank 0's array, rank 1's, and so on.  16-bit floats are summed in
        float32 and rounded once.  On one node sums have these bits without this option.

    Returns
    -------
    KVStore
        For a registered name, an instance of the registered class.

    Raises
    ------
    UsageError
        When an argument is unknown or out of range.
    LaunchError
        When the job was not started as the store needs, or lacks the GPUs that the store needs.
    SpecMismatch
        On every rank, when ranks give different names or options.

    Examples
    --------
    >>> import ncclkv
    >>> ncclkv.create("loacl")
    Traceback (most recent call last):
        ...
    ncclkv.errors.UsageError: store 'loacl' is unknown; did you mean 'local'? use one of device, \
dist, dist_device_sync, dist_sync, dist_sync_device, local, local_allreduce_cpu, \
local_allreduce_device, local_update_cpu, nccl, threads
    """
    log.prepare()
    check_length("timeout", timeout)
    lower = name.lower() if isinstance(name, str) else name
    if not (isinstance(lower, str) and lower in REFUSED):
        check_known("store", lower, sorted({*FACTORIES, *KVStoreBase.kv_registry} - {*REFUSED}))
    options = Options(
        update_on=update_on,
        root=root,
        bucket_bytes=bucket_bytes,
        missing=missing,
        nonfinite=nonfinite,
        verify_every=verify_every,
        repair=repair,
        reproducible=reproducible,
    )
    if lower in KVStoreBase.kv_registry:
        _refuse_options(lower, options, comm=comm, timeout=timeout)
        # Typed as KVStore, like all other names; a program that registers a class can cast.
        return cast(KVStore, KVStoreBase.kv_registry[lower]())
    with Creating():
        checked = None if timeout is None else env.timeout(timeout)
        return cast(KVStore, FACTORIES[lower](lower, comm, checked, options))


def _refuse_options(name: str, options: Options, **others: Any) -> None:
    """Refuse options of a registered class, which is called without arguments as in MXNet."""
    given = options.given() + [option for option, value in others.items() if value is not None]
    if given:
        raise UsageError(
            f"create({name!r}) makes an object of a registered class, which takes no options, but "
            f"was given {', '.join(given)}; set these options on the object"
        )
