"""Disk space kept back for the ledgers: on a full disk a publish is refused, a FIN never is.

One preallocated file in the data path, ``reserve``, serves all topics (beanstalkd's idea, which
reserves the space of a delete when it takes a put).

1. A log takes space by `admit` alone. It is refused while the reserve is smaller than its target,
   and what it leaves free is never less than SLACK_BYTES: no large write that is about to fail
   takes the last blocks from under a ledger in another thread.
2. A ledger that finds no space shrinks the reserve by what it needs, down to `floor_bytes`, and
   tries again. One that is new does not: a new topic is refused as a publish is.
3. `floor_bytes` is spent on nothing but the two writes that give space back: one checkpoint, as
   large as that of the ledger that needs most could be, and one file of the catalogue. A
   checkpoint written from it runs in the loop: there is one at a time.
4. While ledgers use the reserve, only such checkpoints are made, one for each that gives back the
   space that is needed: many that are under way at once would need space for all of them. What
   their deletes give back goes to the floor first, then to the slack, then to the rest.
5. The target follows the disk: every `admit` that looks at the disk raises it to a SHARE of what is
   free, and to two blocks for each ledger beside the floor, so that each ledger can reach the
   size at which its checkpoint takes no more than it gives back.
6. Several threads shrink and fill the file: its length is the only state that counts.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from sparq.log.disk import Disk, DiskError, File

Result = TypeVar("Result")
RESERVE_BYTES: Final = 16 << 20
SHARE: Final = 8
"""On a small disk, no more than this part of what is free."""
SLACK_BYTES: Final = 64 << 10
"""What logs leave free on the disk."""
BLOCK_BYTES: Final = 4096
"""File systems give space in blocks; the smallest file takes one."""
CATALOG_BYTES: Final = 2 * BLOCK_BYTES
"""Of the floor: a new file of the catalogue, and its entry in the folder."""
LEDGER_BYTES_MIN: Final = 64 << 10
"""A ledger smaller than this is never due for a checkpoint while there is space."""
HEADER_BYTES: Final = 1024 + 64
"""Of a checkpoint, with its block's."""
FINISH_BYTES: Final = 64
"""A FIN that is alone in its turn adds about so much to a ledger: range, cursor, block."""
FILE_NAME: Final = "reserve"


class Purpose(Enum):
    """What somebody wants space of the reserve for."""

    TOPIC = "topic"
    APPEND = "append"
    CHECKPOINT = "checkpoint"
    CATALOG = "catalog"


@dataclass(slots=True, eq=False)
class Account:
    """What one topic's ledger takes on the disk.

    Attributes:
        ledger_bytes: of the files that its next checkpoint replaces.
        state_bytes: of the records in its last checkpoint.
    """

    ledger_bytes: int = 0
    state_bytes: int = 0

    @property
    def checkpoint_bytes(self) -> int:
        """What its next checkpoint takes at most, stored once, with the ledger begun beside it.

        No record of a ledger adds more to the state than its own size.
        """
        return blocks(HEADER_BYTES + self.state_bytes + self.ledger_bytes) + BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Room:
    """How much room there is for what consumers finish.

    Attributes:
        reserve_bytes: what the reserve holds.
        target_bytes: what it should hold.
        ledgers: how many ledgers share it.
        finishes: so many single FINs fit before the next checkpoint has to make room; consecutive
            ones take no space for good, however many there are.
        is_short: whether publishes are refused for want of space.
    """

    reserve_bytes: int
    target_bytes: int
    ledgers: int
    finishes: int
    is_short: bool


def blocks(size_bytes: int) -> int:
    """The bytes that a file of this size takes on a disk."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


class Reserve:
    """The reserve of a data path.

    Attributes:
        target_bytes: how large it should be.
        held_bytes: how large it is.
        floor_bytes: what no append may spend, as counted last.
        credit_bytes: logs may take so much before the disk is looked at again.
        is_refusing: whether the last log that asked for space was refused it.
    """

    def __init__(self, disk: Disk, directory: str, file: File, size_bytes: int) -> None:
        """Use `Reserve.open`."""
        self._disk = disk
        self._directory = directory
        self._file = file
        self._size_bytes = size_bytes
        self._accounts: dict[Account, None] = {}
        self.credit_bytes = 0
        self._share_bytes = self._room_bytes = 0
        self.held_bytes = file.size()
        self.target_bytes = self.floor_bytes = 0
        self.is_refusing = False

    @classmethod
    def open(cls, disk: Disk, data_path: str, size_bytes: int = RESERVE_BYTES) -> "Reserve":
        """Make or find the file and fill it up; a disk too full for that is no error.

        Raises:
            DiskError: the file cannot be made or opened.
        """
        path = f"{data_path}/{FILE_NAME}"
        file = disk.open(path) if disk.exists(path) else disk.create(path)
        reserve = cls(disk, data_path, file, size_bytes)
        # On a disk that is full now, what an earlier run could reserve is all there is.
        reserve._share_bytes = min(size_bytes, reserve.held_bytes)
        reserve.restore()
        return reserve

    def close(self) -> None:
        """Close the file; the space stays reserved."""
        self._file.close()

    # Ledgers

    def join(self, account: Account) -> None:
        """A ledger is there, whose FINs are to be kept."""
        self._accounts[account] = None
        self._retarget()

    def leave(self, account: Account) -> None:
        """A ledger is gone."""
        self._accounts.pop(account, None)
        self._retarget()

    def _count(self) -> None:
        """Find the floor anew: ledgers have grown."""
        accounts = tuple(self._accounts)
        most = max((account.checkpoint_bytes for account in accounts), default=2 * BLOCK_BYTES)
        self.floor_bytes = most + CATALOG_BYTES

    @property
    def ledger_limit(self) -> int:
        """The size from which on a ledger is due for a checkpoint, while there is space."""
        return max(LEDGER_BYTES_MIN, self.target_bytes // 4)

    # The file

    @property
    def is_low(self) -> bool:
        """Whether ledgers have used of it and it is not filled up again."""
        return self.held_bytes < self.target_bytes

    @property
    def is_short(self) -> bool:
        """Whether logs get no space now."""
        return self.is_refusing or self.is_low

    def admit(self, size_bytes: int) -> None:
        """Let a log take so much of the disk.

        Raises:
            DiskError: there is no space for it.
        """
        self.credit_bytes -= size_bytes
        if self.credit_bytes >= 0 and self.held_bytes >= self.target_bytes:
            return
        free = self.restore()
        left = free - size_bytes - SLACK_BYTES
        self.is_refusing = self.is_low or left < 0
        # Somebody else may use the disk, too: it is looked at again at half of what there is.
        self.credit_bytes = max(0, left // 2)
        if self.is_refusing:
            self.credit_bytes = 0
            raise DiskError("write", self._directory, errno.ENOSPC)

    def look(self, size_bytes: int) -> bool:
        """Fill the reserve up, and say whether a log would get so much space.

        Raises:
            DiskError: the disk cannot be looked at.
        """
        free = self.restore()
        has_space = not self.is_low and free >= size_bytes + SLACK_BYTES
        self.is_refusing &= not has_space
        return has_space

    def release(self, size_bytes: int, purpose: Purpose = Purpose.APPEND) -> bool:
        """Shrink the file by so much; False: there is nothing that this purpose may have.

        Raises:
            DiskError: the file cannot be cut.
        """
        size = self._file.size()
        kept = self._kept_from(purpose, size_bytes)
        left = max(kept, (size - blocks(size_bytes)) // BLOCK_BYTES * BLOCK_BYTES)
        if left >= size:
            return False
        self.held_bytes = left
        self._file.truncate(left)
        return True

    def holds(self, size_bytes: int, purpose: Purpose) -> bool:
        """Whether so much is there for this purpose, on the disk or in the reserve."""
        free = self._disk.free_bytes(self._directory)
        return size_bytes <= free + max(0, self.held_bytes - self._kept_from(purpose, 0))

    def _kept_from(self, purpose: Purpose, size_bytes: int) -> int:
        """What of the file is not for this purpose, once so much is written."""
        if purpose is Purpose.TOPIC:
            return self.held_bytes
        if purpose is Purpose.APPEND:
            self._count()
            # The ledger that grows may be the one that needs most.
            return self.floor_bytes + blocks(size_bytes)
        return CATALOG_BYTES if purpose is Purpose.CHECKPOINT else 0

    def restore(self) -> int:
        """Fill it up as far as there is space; returns what is free then.

        Raises:
            DiskError: the disk refuses, though there seems to be space.
        """
        free = self._disk.free_bytes(self._directory)
        self._count()
        self._measure(free + self.held_bytes)
        missing = self.target_bytes - self.held_bytes
        if missing <= 0:
            return free
        to_floor = min(free, max(0, self.floor_bytes - self.held_bytes))
        growth = min(missing, max(to_floor, free - SLACK_BYTES))
        if growth <= 0:
            return free
        try:
            self._file.reserve(self.held_bytes + growth)
        except DiskError as error:
            if not error.is_full:
                raise
        finally:
            self.held_bytes = self._file.size()
        return self._disk.free_bytes(self._directory)

    def _measure(self, room_bytes: int) -> None:
        """Let the target follow what is free, with what the reserve has of it."""
        self._share_bytes = max(self._share_bytes, min(self._size_bytes, room_bytes // SHARE))
        self._room_bytes = room_bytes
        self._retarget()

    def _retarget(self) -> None:
        wanted = self.floor_bytes + 2 * BLOCK_BYTES * len(self._accounts)
        most = max(self._room_bytes // 2, self.held_bytes)
        self.target_bytes = max(self._share_bytes, min(wanted, most))

    def room(self) -> Room:
        """How much room for FINs there is, by what was known last; nothing is asked of the disk."""
        spare = max(0, self.held_bytes - self.floor_bytes)
        return Room(
            self.held_bytes,
            self.target_bytes,
            len(self._accounts),
            spare // FINISH_BYTES,
            self.is_short,
        )


def with_reserve(
    action: Callable[[], Result],
    reserve: Reserve | None,
    size_bytes: int,
    purpose: Purpose = Purpose.APPEND,
) -> Result:
    """Do something that needs so much space; where there is none, take it from the reserve.

    Raises:
        DiskError: it failed for another reason, or has had all that its purpose may have.
    """
    while True:
        try:
            return action()
        except DiskError as error:
            if not error.is_full or reserve is None or not reserve.release(size_bytes, purpose):
                raise
