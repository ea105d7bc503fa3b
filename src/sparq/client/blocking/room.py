"""Room for what threads give to the session's: so many bytes at a time, and no more.

1. One alone is let in, however large it is.
2. Who waits for room may be interrupted (Ctrl-C): it has taken none then.
"""

import threading


class Room:
    """Lets in what fits, and makes the rest wait.

    Attributes:
        count: how many are inside.
    """

    def __init__(self, bytes_max: int) -> None:
        self.count = 0
        self._bytes_max = bytes_max
        self._bytes = 0
        self._changed = threading.Condition()

    def enter(self, size: int) -> None:
        """Wait until there is room for so many bytes, and take it."""
        with self._changed:
            while self.count and self._bytes + size > self._bytes_max:
                self._changed.wait()
            self.count += 1
            self._bytes += size

    def leave(self, size: int) -> None:
        """Give back what was taken."""
        with self._changed:
            self.count -= 1
            self._bytes -= size
            self._changed.notify_all()
