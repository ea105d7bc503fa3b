"""What a program with one thing to say writes: its version, its help, its findings."""

from __future__ import annotations

import errno
import os
import sys

from sparq.protocol.identify import NSQ_VERSION, SPARQ_VERSION


def sparq_version() -> str:
    """sparq's own version."""
    return SPARQ_VERSION


def version_line(program: str) -> str:
    """What `--version` prints: NSQ's form with the NSQ version spoken, then sparq's own version.

    Nothing but that stands in the parentheses: test suites of NSQ clients match `(built w/<word>)`.
    """
    built = f"(built w/python{sys.version.split()[0]})"
    return f"{program} v{NSQ_VERSION} {built} sparq {sparq_version()}"


def said(text: str) -> bool:
    """Write it: whether that was done. A line on stderr says why not, unless nobody reads it."""
    try:
        _say(text)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"failed to write to standard output - {error.strerror}\n")
        return False
    return True


def _say(text: str) -> None:
    if sys.stdout is None:  # it was closed when the program began
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        # What is left of the text is not tried again, with a traceback, as Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
