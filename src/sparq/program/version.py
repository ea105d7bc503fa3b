"""What a program says of its version."""

from __future__ import annotations

import platform
from importlib.metadata import version

from sparq.protocol.identify import NSQ_VERSION


def sparq_version() -> str:
    """sparq's own version, from the installed package."""
    return version("sparq")


def version_line(program: str) -> str:
    """What `--version` prints: NSQ's form with the NSQ version spoken, then sparq's own version.

    `(built w/` follows the number directly: test suites of NSQ clients look for exactly that.
    """
    built = f"built w/python{platform.python_version()}, sparq {sparq_version()}"
    return f"{program} v{NSQ_VERSION} ({built})"
