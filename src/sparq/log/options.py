"""What a log may be told, with where each limit comes from."""

from dataclasses import dataclass
from typing import Final

SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LogOptions:
    """A log's limits.

    Attributes:
        max_bytes_per_file: a file is not begun another batch in beyond this size.
        sync_every: messages after which a commit syncs; 1: every commit does.
        sync_timeout_ns: what is unsynced for so long is due.
        unsynced_bytes_max: unsynced messages stay in memory until they are synced (a failed sync
            means to write them again); beyond this, a commit syncs whatever the policy.
    """

    max_bytes_per_file: int = 100 << 20
    sync_every: int = 1
    sync_timeout_ns: int = 2 * SECOND_NS
    unsynced_bytes_max: int = 8 << 20
