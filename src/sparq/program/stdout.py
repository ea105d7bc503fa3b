"""Output of a program that prints one text: its version, its help page or its findings."""

from __future__ import annotations

import errno
import os
import sys

from sparq.protocol import NSQ_VERSION, SPARQ_VERSION


def version_line(program: str) -> str:
    """Return the text of `--version`: the NSQ version in NSQ's form, then sparq's own version.

    The parentheses hold nothing else: test suites of NSQ clients match `(built w/<word>)`.
    """
    built = f"(built w/python{sys.version.split()[0]})"
    return f"{program} v{NSQ_VERSION} {built} sparq {SPARQ_VERSION}"


def write_stdout(text: str) -> bool:
    """Write text to standard output; return whether that succeeded.

    If not, a line on stderr says why, except for a broken pipe.
    """
    try:
        if sys.stdout is None:  # it was already closed when the program started
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        if sys.stdout is not None:
            # Discard the rest of the text: Python would try to write it at exit, with a traceback.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"failed to write to standard output - {error.strerror}\n")
        return False
    return True
