"""Disk space reserved for the ledgers: on a full disk a publish is refused, a FIN never is.

One preallocated file in the data path, ``reserve``, serves all topics (beanstalkd's idea, which
reserves the space of a delete when it accepts a put).

1. A log takes space by `admit` alone. It is refused while the reserve is smaller than its target,
   and it always leaves at least SLACK_BYTES free: a large write that is about to fail must not take
   the last blocks from a ledger in another thread.
2. A ledger that finds no space shrinks the reserve by what it needs, down to `floor_bytes`, and
   tries again. A new ledger does not: a new topic is refused like a publish.
3. `floor_bytes` is spent only on the two writes that free space: one checkpoint, as large as the
   largest that any ledger could need, and one file of the catalogue. A checkpoint written from it
   runs in the event loop, so there is one at a time.
4. While ledgers use the reserve, only such checkpoints are made, one after the other until the
   space that is needed is free: many at once would need space for all of them. The space that their
   deletes free goes to the floor first, then to the slack, then to the rest.
5. The target follows the disk: every `admit` that checks the disk raises it to 1/SHARE of the free
   space, and to two blocks per ledger in addition to the floor, so that each ledger can reach the
   size at which its checkpoint takes no more space than it frees.
6. Several threads shrink and fill the file: its length is the only state that counts.
7. A quota (of btrfs) refuses to shrink a file, to rename one and to write into allocated space, and
   is in no figure about free space; deleting a file is all that it allows. Then the reserve is
   deleted and made again, smaller by a step. To fill it up, space for a step must be left over.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from sparq.log.disk import Disk, DiskError, File

Result = TypeVar("Result")
RESERVE_BYTES: Final = 16 << 20
SHARE: Final = 8
"""On a small disk, the reserve takes at most 1/SHARE of the free space."""
SLACK_BYTES: Final = 64 << 10
"""Bytes that logs leave free on the disk."""
BLOCK_BYTES: Final = 4096
"""File systems allocate space in blocks; the smallest file takes one."""
CATALOG_BYTES: Final = 2 * BLOCK_BYTES
"""Part of the floor: a new file of the catalogue, and its entry in the folder."""
LEDGER_BYTES_MIN: Final = 64 << 10
"""A ledger smaller than this is never due for a checkpoint while there is space."""
HEADER_BYTES: Final = 1024 + 64
"""The header of a checkpoint, and that of its block."""
FINISH_BYTES: Final = 64
"""Approximate bytes that a single FIN in a turn adds to a ledger: range, cursor, block."""
FILE_NAME: Final = "reserve"
STEP_NAME: Final = "reserve.step"
SETTLE_CHECKS: Final = 10
"""Number of checks without space until the file system is told to count what was deleted."""
QUOTA_STEP_BYTES: Final = 1 << 20
"""What is given back or left at a time under a quota: a rename alone may need 200 KiB."""


class Purpose(Enum):
    """The purpose for which space of the reserve is used."""

    TOPIC = "topic"
    APPEND = "append"
    CHECKPOINT = "checkpoint"
    CATALOG = "catalog"


@dataclass(slots=True, eq=False)
class Account:
    """The disk space of one topic's ledger.

    Attributes:
        ledger_bytes: size of the files that its next checkpoint replaces.
        state_bytes: size of the records in its last checkpoint.
    """

    ledger_bytes: int = 0
    state_bytes: int = 0

    @property
    def checkpoint_bytes(self) -> int:
        """Maximum space of the next checkpoint, stored once, plus the ledger begun with it.

        A ledger's record adds no more to the state than its own size.
        """
        return blocks(HEADER_BYTES + self.state_bytes + self.ledger_bytes) + BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class FinReserve:
    """The space for FINs on a full disk.

    Attributes:
        reserve_bytes: the current size of the reserve.
        target_bytes: its target size.
        ledgers: the number of ledgers that share it.
        finishes: the number of single FINs that fit before the next checkpoint has to free space;
            consecutive ones take no lasting space, whatever their number.
        is_short: whether publishes are refused for lack of space.
    """

    reserve_bytes: int
    target_bytes: int
    ledgers: int
    finishes: int
    is_short: bool


def blocks(size_bytes: int) -> int:
    """Return the bytes that a file of this size takes on a disk."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


class Reserve:
    """The reserve of a data path.

    Attributes:
        target_bytes: its target size.
        held_bytes: its current size.
        floor_bytes: the part that no append may use, as last computed.
        credit_bytes: bytes that logs may take before the disk is checked again.
        is_refusing: whether the last log that asked for space was refused.
        blocked: why logs get no space whatever is free; None: they may get some.
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
        self.blocked: DiskError | None = None
        self._has_quota = False
        self._checks_to_settle = SETTLE_CHECKS

    @classmethod
    def open(cls, disk: Disk, data_path: str, size_bytes: int = RESERVE_BYTES) -> "Reserve":
        """Create or open the file and fill it up; a disk too full for that is not an error.

        Raises:
            DiskError: the file cannot be made or opened.
        """
        if disk.exists(step := f"{data_path}/{STEP_NAME}"):
            disk.unlink(step)  # left by a kill
        path = f"{data_path}/{FILE_NAME}"
        file = disk.open(path) if disk.exists(path) else disk.create(path)
        reserve = cls(disk, data_path, file, size_bytes)
        # If the disk is full now, the space that an earlier run reserved is all there is.
        reserve._share_bytes = min(size_bytes, reserve.held_bytes)
        reserve.restore()
        return reserve

    def close(self) -> None:
        """Close the file; the space stays reserved."""
        self._file.close()

    # Ledgers

    def join(self, account: Account) -> None:
        """Add a ledger, whose FINs must be kept."""
        self._accounts[account] = None
        self._retarget()

    def leave(self, account: Account) -> None:
        """Remove a ledger."""
        self._accounts.pop(account, None)
        self._retarget()

    def _count(self) -> None:
        """Compute the floor again, since ledgers have grown."""
        # A copy: another thread may add a ledger meanwhile, and a loop over the dict would raise.
        accounts = tuple(self._accounts)
        most = max((account.checkpoint_bytes for account in accounts), default=2 * BLOCK_BYTES)
        self.floor_bytes = most + CATALOG_BYTES

    # The file

    @property
    def is_low(self) -> bool:
        """Whether ledgers have used part of the reserve, and it is not filled up again yet."""
        return self.held_bytes < self.target_bytes

    @property
    def is_short(self) -> bool:
        """Whether logs get no space now."""
        return self.is_refusing or self.is_low

    def admit(self, size_bytes: int) -> None:
        """Let a log take `size_bytes` of the disk.

        Raises:
            DiskError: there is no space for it, or the data path is not where it was.
        """
        self.refuse_if_blocked()
        self.credit_bytes -= size_bytes
        if self.credit_bytes >= 0 and self.held_bytes >= self.target_bytes:
            return
        free = self.restore()
        left = free - size_bytes - SLACK_BYTES
        self.is_refusing = self.is_low or left < 0
        # Other programs may use the disk, too: it is checked again after half of the free space.
        self.credit_bytes = max(0, left // 2)
        if self.is_refusing:
            self.credit_bytes = 0
            raise DiskError("write", self._directory, errno.ENOSPC)

    def check_space(self, size_bytes: int) -> bool:
        """Fill the reserve up; return whether a log would get `size_bytes` of the disk.

        Raises:
            DiskError: the disk cannot be queried.
        """
        free = self.restore()
        if self.is_low or free < size_bytes + SLACK_BYTES:
            # Once a second at most: it may wait for the disk.
            self._checks_to_settle -= 1
            if self._checks_to_settle <= 0:
                self._checks_to_settle = SETTLE_CHECKS
                self._disk.settle(self._directory)
                free = self.restore()
        return not self.is_low and free >= size_bytes + SLACK_BYTES

    def refuse_if_blocked(self) -> None:
        """Raise DiskError while logs get no space whatever is free."""
        if (why := self.blocked) is not None:
            raise DiskError(why.operation, why.path, why.number, text=why.text)

    def check_place(self) -> None:
        """Refuse logs any space while the data path's folder is not the one that was locked."""
        try:
            self._disk.check_place(self._directory)
        except DiskError as error:
            self.blocked, self.credit_bytes = error, 0
        else:
            self.blocked = None

    def release(self, size_bytes: int, purpose: Purpose = Purpose.APPEND) -> bool:
        """Shrink the file by `size_bytes`; False: nothing is left for this purpose, or it fails."""
        kept = self._kept_from(purpose, size_bytes)
        if self._has_quota:
            size_bytes = max(size_bytes, min(QUOTA_STEP_BYTES, self.target_bytes // SHARE))
        # Whole blocks, since a file system frees no parts of them.
        left = max(kept, (self.held_bytes - blocks(size_bytes)) // BLOCK_BYTES * BLOCK_BYTES)
        if left >= self.held_bytes:
            return False
        # Set before the file shrinks: otherwise `admit` could give the space to a log in another
        # thread.
        self.held_bytes = left
        try:
            try:
                self._file.truncate(left)
            except DiskError:
                self._has_quota = True
                self._replace(left)
        except DiskError:
            return False
        return True

    def _replace(self, size_bytes: int) -> None:
        """Delete the file, and make it again with this size if there is space (rule 7).

        Raises:
            DiskError: it cannot be deleted, or there is no file now.
        """
        path = f"{self._directory}/{FILE_NAME}"
        if self._disk.exists(path):
            self._disk.unlink(path)
        self._file.close()
        self.held_bytes = 0
        self._file = self._disk.create(path)
        if size_bytes:
            with suppress(DiskError):
                self._file.reserve(size_bytes)
        self.held_bytes = self._file.size()

    def holds(self, size_bytes: int, purpose: Purpose) -> bool:
        """Whether `size_bytes` are available for this purpose, on the disk or in the reserve."""
        free = self._disk.free_bytes(self._directory)
        return size_bytes <= free + max(0, self.held_bytes - self._kept_from(purpose, 0))

    def _kept_from(self, purpose: Purpose, size_bytes: int) -> int:
        """Return how much of the file this purpose must leave, once `size_bytes` are written."""
        if purpose is Purpose.TOPIC:
            return self.held_bytes
        if purpose is Purpose.APPEND:
            self._count()
            # The ledger that grows may be the one with the largest checkpoint.
            return self.floor_bytes + blocks(size_bytes)
        return CATALOG_BYTES if purpose is Purpose.CHECKPOINT else 0

    def restore(self) -> int:
        """Fill the reserve up as far as there is space; return the bytes that are free then.

        Raises:
            DiskError: the disk refuses, although there seems to be space.
        """
        free = self._disk.free_bytes(self._directory)
        self._count()
        # Never lowered: on a full disk, a lower target would let logs take the space that
        # checkpoints free, before the reserve is filled up again.
        self._room_bytes = free + self.held_bytes
        share_bytes = min(self._size_bytes, self._room_bytes // SHARE)
        self._share_bytes = max(self._share_bytes, share_bytes)
        self._retarget()
        missing = self.target_bytes - self.held_bytes
        if missing <= 0:
            return free
        to_floor = min(free, max(0, self.floor_bytes - self.held_bytes))
        growth = min(missing, max(to_floor, free - SLACK_BYTES))
        if growth <= 0:
            return free
        try:
            with self._step_left_over():
                # Allocated, not just extended: a sparse file would hold no space.
                self._file.reserve(self.held_bytes + growth)
            self.held_bytes = self._file.size()
        except DiskError as error:
            # Something else took the space first: the file's size tells how much it got. Or another
            # thread has just replaced the file, or is filling it up.
            if not error.is_full and error.number not in (errno.EBADF, errno.EEXIST):
                raise
            self._has_quota |= error.number == errno.EDQUOT
            self.held_bytes = self._file.size()
        return self._disk.free_bytes(self._directory)

    @contextmanager
    def _step_left_over(self) -> Iterator[None]:
        """Under a quota, take the space that must be left over, and free it afterwards."""
        if not self._has_quota:
            yield
            return
        path = f"{self._directory}/{STEP_NAME}"
        with suppress(DiskError):
            self._disk.unlink(path)  # left by a deletion that failed
        file = self._disk.create(path)
        try:
            file.reserve(2 * min(QUOTA_STEP_BYTES, self.target_bytes // SHARE))
            yield
        finally:
            file.close()
            with suppress(DiskError):
                self._disk.unlink(path)

    def _retarget(self) -> None:
        wanted = self.floor_bytes + 2 * BLOCK_BYTES * len(self._accounts)
        # With thousands of ledgers on a small disk, half of the space remains for messages.
        most = max(self._room_bytes // 2, self.held_bytes)
        self.target_bytes = max(self._share_bytes, min(wanted, most))

    def fin_reserve(self) -> FinReserve:
        """Return the space for FINs as last known, without querying the disk."""
        spare = max(0, self.held_bytes - self.floor_bytes)
        return FinReserve(
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
    """Run an action that needs `size_bytes`; if there is no space, take it from the reserve.

    Raises:
        DiskError: it failed for another reason, or its purpose has used up its share of the
            reserve.
    """
    released = size_bytes
    while True:
        try:
            # In a loop: another thread or program may take the released space first.
            return action()
        except DiskError as error:
            if not error.is_full or reserve is None or not reserve.release(released, purpose):
                raise
        # Doubled: block by block, a disk that refuses whatever is released took seconds.
        released *= 2
