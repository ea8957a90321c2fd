"""Log: the rank in the records of logger ``ncclkv``, and the level of ``NCCLKV_LOG_LEVEL``.

Each record has the attribute ``ncclkv_rank``.  A handler of the package is added only if the
variable is set, and writes only while the program has no handler of its own.
"""

from __future__ import annotations

import logging

from ncclkv import concurrency, env

NAME = "ncclkv"

_FORMAT = "%(asctime)s ncclkv rank %(ncclkv_rank)d %(levelname)s: %(message)s"


class _Ranks(concurrency.local):
    """The rank of each thread that is one."""

    rank: int | None = None


_ranks = _Ranks()
_process_rank: int | None = None


class _AddRank(logging.Filter):
    """Adds the rank of the thread, or of the process, to each record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the attribute ``ncclkv_rank``, and let the record pass."""
        of_process = env.launched_rank() if _process_rank is None else _process_rank
        record.ncclkv_rank = (of_process or 0) if _ranks.rank is None else _ranks.rank
        return True


class _ToStderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes records to stderr while no handler of the program receives them."""

    def emit(self, record: logging.LogRecord) -> None:
        logger = logging.getLogger(NAME)
        others = [each for each in logger.handlers if each is not self]
        if not others and not (logger.propagate and logging.getLogger().handlers):
            super().emit(record)


def set_process_rank(rank: int) -> None:
    """Set the rank of a process, by MPI."""
    global _process_rank
    _process_rank = rank


def set_thread_rank(rank: int) -> None:
    """Set the rank of a thread that is one."""
    _ranks.rank = rank


def prepare() -> None:
    """Add the rank to records, and follow the variable; later calls do nothing."""
    logger = logging.getLogger(NAME)
    if any(isinstance(each, _AddRank) for each in logger.filters):
        return
    logger.addFilter(_AddRank())
    level = env.log_level()
    if level:
        logger.setLevel(level)
        handler = _ToStderr()
        handler.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(handler)
