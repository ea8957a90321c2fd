"""Id of this process, read without a call to the system: each verb compares it."""

from __future__ import annotations

import os


class _ThisProcess:
    """The process that runs this code, also after a fork."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Read the id."""
        self.pid = os.getpid()


this_process = _ThisProcess()
