"""nsqd that keeps memory and open files of every topic that it deletes. A control of mixed.py."""

import os
import sys

from sparq.broker.topics import Topics
from sparq.nsqd.main import main

LEAKED_BYTES = 2 << 20
LEAKED_FILES = 16

delete = Topics.delete
kept: list[tuple[bytes, list[int]]] = []


def delete_and_keep(topics: Topics, *arguments: str) -> object:
    """Delete a topic, and keep memory and an open file for it."""
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(LEAKED_FILES)]
    kept.append((os.urandom(LEAKED_BYTES), files))
    return delete(topics, *arguments)


if __name__ == "__main__":
    setattr(Topics, "delete", delete_and_keep)  # noqa: B010 - a replacement, as types forbid it
    sys.exit(main())
