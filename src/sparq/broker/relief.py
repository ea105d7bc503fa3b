"""Room for ledgers on a full disk: checkpoints, made at once, largest ledgers first.

1. `make_room` is called when a ledger cannot be written: the replies of the turn wait for it,
   since a FIN before an answered command is promised to be kept. `shrink_largest` is called while
   publishes are refused: room for them may be what ledgers have taken.
2. Each checkpoint takes the space that the reserve has aside, and gives back what its ledger took.
3. The checkpoint of the ledger that could not be written holds what was to be written to it: so
   it is the last that is tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from sparq.log.disk import DiskError
from sparq.log.reserve import BLOCK_BYTES
from sparq.protocol.instant import Instant

if TYPE_CHECKING:
    from sparq.broker.bookkeeping import Bookkeeper

SIZE_MIN: Final = 2 * BLOCK_BYTES
"""A checkpoint and the ledger begun behind it take so much themselves."""
LARGE_BYTES: Final = 4 * BLOCK_BYTES
"""An idle ledger of this size is worth a checkpoint on a full disk."""
TRIED_MAX: Final = 8
"""Where the largest ledgers cannot be made smaller, the others hardly can."""


def make_room(needy: Bookkeeper, all_books: Iterable[Bookkeeper], now: Instant) -> bool:
    """Have what is noted in a ledger written on a disk that has no space; False: it cannot be."""
    large = [
        books
        for books in all_books
        if books is not needy and books.ledger.account.ledger_bytes > SIZE_MIN
    ]
    large.sort(key=_ledger_bytes, reverse=True)
    del large[TRIED_MAX:]
    if _ledger_bytes(needy) > max(map(_ledger_bytes, large), default=0) and needy.shrink(now):
        return True
    for books in large:
        if books.shrink(now) and _is_written(needy):
            return True
    return needy.shrink(now)


def shrink_largest(all_books: Iterable[Bookkeeper], now: Instant) -> None:
    """Make the largest ledger smaller by a checkpoint, if that halves it.

    Ledgers alone can fill a small disk, and when all is finished nothing is written to them any
    more that would ask for room.
    """
    large = [
        books
        for books in all_books
        if _ledger_bytes(books) >= max(LARGE_BYTES, 2 * books.ledger.account.state_bytes)
    ]
    if large:
        max(large, key=_ledger_bytes).shrink(now)


def _ledger_bytes(books: Bookkeeper) -> int:
    return books.ledger.account.ledger_bytes


def _is_written(books: Bookkeeper) -> bool:
    try:
        books.ledger.flush()
    except DiskError:
        return False
    return True
