"""Standard output of a program that has one thing to say: its help, its version, its findings."""

from __future__ import annotations

import errno
import os
import sys


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
