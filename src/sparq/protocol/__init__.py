"""NSQ's wire protocol as bytes and values, for both ends of a connection.

Nothing in this package opens a socket, reads a clock or starts a thread: bytes and times are
arguments, commands and frames are results. Every other package of sparq may import this one;
this one imports none of them.
"""

from typing import Final

SPARQ_VERSION: Final = "0.1.0"
"""Same as `sparq.__version__` and pyproject.toml; reading the package's metadata took 43 ms."""

NSQ_VERSION: Final = "1.3.0"
"""Clients and nsqadmin compare versions, so this is NSQ's version, not sparq's."""
