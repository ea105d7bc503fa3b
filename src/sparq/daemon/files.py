"""How many files a daemon may have open, and how many of them may be connections.

A socket is a file to the system. Those who flood a daemon with connections must not take the files
that it needs for its own work, so that a part of all is kept from them.
"""

from __future__ import annotations

import resource

OWN_SHARE = 8
"""One file in so many is kept for logs, pipes and listeners; what stands below is the least."""

OWN_MIN = 32
UNLIMITED = 1 << 20
"""The bound where the system names none."""


def raise_limit() -> int:
    """Raise the number of open files to what the system lets this process have; that number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def for_connections(limit: int) -> int:
    """How many of `limit` open files may be connections."""
    if limit == resource.RLIM_INFINITY:
        return UNLIMITED
    return max(1, limit - max(OWN_MIN, limit // OWN_SHARE))
