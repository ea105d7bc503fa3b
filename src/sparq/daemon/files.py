"""How many files a daemon may have open, and who may have how many of them.

A socket is a file to the system. Those who flood a daemon with connections must not take the files
that it needs for its own work, so that all are shared out beforehand (decision 28): a few for what
every daemon has, an eighth for logs and ledgers, an eighth for HTTP, the rest for V2 clients.
"""

from __future__ import annotations

import resource
from typing import NamedTuple

OWN = 24
"""Standard streams, loop, listeners, lock, peers and what an answer needs for a moment."""

SPARE = 8
"""For what a log opens besides: folders to be synced, files that are read by several at once."""

PART = 8
"""One file in so many is for logs and ledgers, and one for HTTP; what stands below is the least."""

PART_MIN = 8
UNLIMITED = 1 << 20
"""The bound where the system names none."""


class Shares(NamedTuple):
    """How many open files are for logs and ledgers, for HTTP and for V2 clients."""

    logs: int
    http: int
    connections: int


def raise_limit() -> int:
    """Raise the number of open files to what the system lets this process have; that number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def shares(limit: int) -> Shares:
    """Share out `limit` open files; one client there is always room for."""
    if limit == resource.RLIM_INFINITY:
        limit = UNLIMITED
    part = max(PART_MIN, limit // PART)
    return Shares(part, part, max(1, limit - OWN - SPARE - 2 * part))
