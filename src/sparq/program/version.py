"""What a program says of its version."""

from __future__ import annotations

import sys

from sparq.protocol.identify import NSQ_VERSION

SPARQ_VERSION = "0.1.0"
"""As in pyproject.toml. Asking the installed package took 43 ms of each start."""


def sparq_version() -> str:
    """sparq's own version."""
    return SPARQ_VERSION


def version_line(program: str) -> str:
    """What `--version` prints: NSQ's form with the NSQ version spoken, then sparq's own version.

    Nothing but that stands in the parentheses: test suites of NSQ clients match `(built w/<word>)`.
    """
    built = f"(built w/python{sys.version.split()[0]})"
    return f"{program} v{NSQ_VERSION} {built} sparq {sparq_version()}"
