"""Create a token on the command line.

The token is printed on stdout and stored nowhere; its line for the token file is printed on stderr,
or appended to `--file`.
"""

from __future__ import annotations

import argparse
import os
import sys

from sparq.daemon.access import tokens
from sparq.daemon.access.tokens import FORM, PREFIX, Form


def issue(module: str, text: str, prefix: str = PREFIX, form: Form = FORM) -> int:
    """Create one token; return the exit status.

    Args:
        module: the module's name in the usage text.
        text: the description in the help text.
        prefix: the prefix of the token.
        form: the form of the token file's lines.
    """
    parser = argparse.ArgumentParser(f"python -m {module}", description=text)
    parser.add_argument("name", help="name of the token, as shown in the audit log")
    roles = ", ".join(form.words) + (
        "" if form.is_whole else "; ROLE:PATTERN for the topics that match"
    )
    parser.add_argument("roles", help=f"comma-separated roles: {roles}")
    parser.add_argument(
        "last_day",
        nargs="?",
        default="",
        help="last day on which the token is valid, such as 2027-03-31 (UTC); default: no end",
    )
    parser.add_argument(
        "--file", default="", help="token file to append the line to; default: print it on stderr"
    )
    given = parser.parse_args()
    try:
        token, line = tokens.make(given.name, given.roles, given.last_day, prefix=prefix, form=form)
        if given.file:
            _add(given.file, line)
    except (ValueError, OSError) as error:
        parser.exit(1, f"{error}\n")
    if not given.file:
        sys.stderr.write(f"{line}\n")
    sys.stdout.write(f"{token}\n")
    return 0


def _add(path: str, line: str) -> None:
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(file).st_size
        whole = not size or os.pread(file, 1, size - 1) == b"\n"
        os.write(file, f"{'' if whole else chr(10)}{line}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)
