"""A daemon's files: durable names, and the limit on open files with its division.

A socket counts as an open file. A flood of connections must not take the files that a daemon needs
for its own work, so all are divided in advance: a few for every daemon's basic needs,
an eighth for logs and ledgers, an eighth for HTTP, the rest for V2 clients.
"""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

OWN = 24
"""For standard streams, event loop, listeners, lock, peers and files opened briefly by answers."""

SPARE = 8
"""For other files of a log: folders to sync, and files that several threads read at once."""

PART = 8
"""One file in 8 is for logs and ledgers, and one for HTTP; `PART_MIN` is the minimum of each."""

PART_MIN = 8
UNLIMITED = 1 << 20
"""The limit to use if the system has none."""


class FileShares(NamedTuple):
    """The numbers of open files for logs and ledgers, for HTTP and for V2 clients."""

    logs: int
    http: int
    connections: int


def raise_limit() -> int:
    """Raise this process's limit on open files to its hard limit; return that limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The soft limit is often 1,024, for programs that use select(); no daemon does.
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def shares(limit: int) -> FileShares:
    """Divide `limit` open files; there is always room for at least one client."""
    if limit == resource.RLIM_INFINITY:
        limit = UNLIMITED
    part = max(PART_MIN, limit // PART)
    return FileShares(part, part, max(1, limit - OWN - SPARE - 2 * part))


def sync_folder(path: str) -> None:
    """Make the names in a file's folder durable."""
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
