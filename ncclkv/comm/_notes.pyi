"""Notes of calls in C: twin of `ncclkv.comm.diagnosis.call_log.PlainNotes`.

All raise TypeError for a wrong number of arguments or one of a wrong kind, and ValueError for a
page that does not hold the calls.
"""

from types import FrameType

class Notes:
    def __init__(
        self, page: memoryview, count: int, calls: int, most: int, own: tuple[str, ...], /
    ) -> None: ...
    def put(self, what: int, keys: int, mark: int, frame: FrameType, /) -> int | None: ...
    def learn(self, what: int, keys: int, text: int, frame: FrameType, /) -> None: ...
