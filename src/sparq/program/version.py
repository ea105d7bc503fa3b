"""What a program says of its version."""

from __future__ import annotations

import platform
from importlib.metadata import version

from sparq.protocol.identify import NSQ_VERSION


def sparq_version() -> str:
    """sparq's own version, from the installed package."""
    return version("sparq")


def version_line(program: str) -> str:
    """What `--version` prints: in NSQ's form the NSQ version spoken, in parentheses sparq's own."""
    built = f"sparq {sparq_version()}, built w/python{platform.python_version()}"
    return f"{program} v{NSQ_VERSION} ({built})"
