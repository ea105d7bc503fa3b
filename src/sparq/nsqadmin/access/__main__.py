"""`python -m sparq.nsqadmin.access NAME ROLES [LAST_DAY]`: a token, and its line for the file.

The token goes to stdout and is kept nowhere; the line goes to stderr, or is added to `--file`.
"""

from __future__ import annotations

import argparse
import os
import sys

from sparq.nsqadmin.access import tokens


def main() -> int:
    """Make one token; the exit status."""
    parser = argparse.ArgumentParser("python -m sparq.nsqadmin.access", description=__doc__)
    parser.add_argument("name", help="whose it is, as the audit log will say")
    parser.add_argument("roles", help="of read, bodies, operate, administer; with commas")
    parser.add_argument("last_day", nargs="?", default="", help="such as 2027-03-31 (UTC)")
    parser.add_argument("--file", default="", help="token file to add the line to")
    given = parser.parse_args()
    try:
        token, line = tokens.make(given.name, given.roles, given.last_day)
        if given.file:
            _add(given.file, line)
    except (ValueError, OSError) as error:
        parser.exit(1, f"{error}\n")
    if not given.file:
        print(line, file=sys.stderr)
    print(token)
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


if __name__ == "__main__":
    sys.exit(main())
