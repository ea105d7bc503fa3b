"""Space kept back for the ledgers: on a full disk a publish is refused, a finish never is.

The idea is beanstalkd's, which reserves the space of a delete when it takes a put; here one spare
file in the data path, really allocated, serves all topics.

1. A ledger that finds no space shrinks the file and tries again.
2. While the file is smaller than it should be, logs take nothing: what was let go is the ledgers'.
   Each commit tries to fill it up first, so publishing resumes by itself when there is space.
3. Both may happen in different threads: the file's length is the only state that counts.
"""

import errno
from typing import Final

from sparq.log.disk import Disk, DiskError, File

RESERVE_BYTES: Final = 16 << 20
STEP_BYTES: Final = 256 << 10
"""What is let go at a time."""
SHARE: Final = 8
"""On a small disk, no more than this part of what is free."""
FILE_NAME: Final = "reserve"


class Reserve:
    """The spare file of a data path.

    Attributes:
        target_bytes: how large it should be.
        held_bytes: how large it is.
    """

    def __init__(self, disk: Disk, directory: str, file: File, target_bytes: int) -> None:
        """Use `Reserve.open`."""
        self._disk = disk
        self._directory = directory
        self._file = file
        self.target_bytes = target_bytes
        self.held_bytes = file.size()

    @classmethod
    def open(cls, disk: Disk, data_path: str, size_bytes: int = RESERVE_BYTES) -> "Reserve":
        """Make or find the file and fill it up; a disk too full for that is no error.

        Raises:
            DiskError: the file cannot be made or opened.
        """
        path = f"{data_path}/{FILE_NAME}"
        file = disk.open(path) if disk.exists(path) else disk.create(path)
        free = disk.free_bytes(data_path) + file.size()
        # On a disk that is full now, what an earlier run could reserve is all there is.
        target = min(size_bytes, max(free // SHARE, file.size()))
        reserve = cls(disk, data_path, file, target)
        try:
            reserve.refill()
        except DiskError as error:
            if not error.is_full:
                raise
        return reserve

    @property
    def is_low(self) -> bool:
        """Whether ledgers have used of it and it is not filled up again."""
        return self.held_bytes < self.target_bytes

    def release(self) -> bool:
        """Let some of it go; False: there is nothing left.

        Raises:
            DiskError: the file cannot be cut.
        """
        size = self._file.size()
        if not size:
            return False
        self.held_bytes = max(0, size - STEP_BYTES)
        self._file.truncate(self.held_bytes)
        return True

    def refill(self) -> None:
        """Fill it up again.

        Raises:
            DiskError: there is no space for all of it.
        """
        missing = self.target_bytes - self.held_bytes
        if missing <= 0:
            return
        if self._disk.free_bytes(self._directory) < missing:
            raise DiskError("reserve", self._file.path, errno.ENOSPC)
        try:
            self._file.reserve(self.target_bytes)
        finally:
            self.held_bytes = self._file.size()

    def grow(self, size_bytes: int) -> None:
        """Twice the largest snapshot must fit into it: make it larger when there is space."""
        free = self._disk.free_bytes(self._directory) + self.held_bytes
        self.target_bytes = max(self.target_bytes, min(size_bytes, free // SHARE))

    def close(self) -> None:
        """Close the file; the space stays reserved."""
        self._file.close()
