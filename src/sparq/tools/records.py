"""Records: what lies between delimiters in a stream of bytes.

1. Empty records are left out; the last one needs no delimiter behind it.
2. A record is held in memory until it is whole, so its size has a limit.
"""

from __future__ import annotations

from typing import Final

RECORD_BYTES_MAX: Final = 64 << 20
"""Far more than any nsqd takes by default: 1 MiB."""


class RecordTooLongError(Exception):
    """No delimiter comes."""


class Records:
    """Cuts bytes, as they come, into records.

    Attributes:
        rest: what came behind the last delimiter.
    """

    def __init__(self, delimiter: bytes, bytes_max: int = RECORD_BYTES_MAX) -> None:
        self._delimiter = delimiter
        self._bytes_max = bytes_max
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Take more bytes: the records that are whole now.

        Raises:
            RecordTooLongError: the record that has begun is longer than the limit.
        """
        head, *others = data.split(self._delimiter)
        self._pieces.append(head)
        self._size += len(head)
        found = []
        if others:
            found = [self.rest, *others[:-1]]
            self._pieces, self._size = [others[-1]], len(others[-1])
        if self._size > self._bytes_max:
            raise RecordTooLongError(f"no delimiter within {self._bytes_max} bytes")
        return [record for record in found if record]

    @property
    def rest(self) -> bytes:
        """The record that has begun and has no delimiter yet."""
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0] if self._pieces else b""
