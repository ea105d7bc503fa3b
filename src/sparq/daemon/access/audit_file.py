"""The audit log's entries and file: append and sync one by one, rotate, read from the end.

1. An entry is on disk when `append` returns. There are few actions, so each has its own fsync.
2. The file is opened again for each entry, so that a file rotated by another program is no longer
   written to.
3. At `FILE_BYTES_MAX` bytes the file becomes `.1`, `.1` becomes `.2`, and so on up to `KEPT`; only
   the owner may read them.
4. A line cut short by a crash is terminated by the next entry, and skipped by readers.
5. A line is JSON in ASCII, so a client's text can neither begin a new line nor send control codes
   to a terminal. Its length is limited: long texts are cut and marked.
6. A reader does a limited amount of work and returns where to continue: `inode-offset` of a line,
   which stays valid across a rotation.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, get_args

from sparq.daemon.access.roles import Via

Outcome = Literal["done", "partly", "failed", "refused"]
OUTCOMES: Final = get_args(Outcome)

FILE_BYTES_MAX: Final = 16 << 20
KEPT: Final = 4
BLOCK_BYTES: Final = 64 << 10
SCAN_BYTES_MAX: Final = 4 << 20
"""Maximum bytes of the log that one page searches."""

TEXT_MAX: Final = 512
DETAIL_MAX: Final = 2048
ARGUMENTS_MAX: Final = 2048
LINE_BYTES_MAX: Final = 64 << 10
CUT: Final = "..."
_PLACE = re.compile(r"([0-9]{1,20})-([0-9]{1,20})", re.ASCII)

Wanted = Callable[[dict[str, Any]], bool]


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One action.

    Attributes:
        user: the user's name, from the token file or the proxy; empty: unknown.
        via: how the name is known.
        remote: the client's address.
        action: as in NSQ's notification, such as `empty_channel`; nsqd and nsqlookupd use the
            method and route, or the command.
        node: the nsqd concerned, `host:port`; empty: all.
        arguments: further arguments, such as `to` of a seek or the ids of messages.
        outcome: `partly` means that it succeeded on some nodes only.
        detail: errors by node, or the result.
        time: empty: the time when it is recorded.
    """

    user: str
    via: Via
    remote: str
    action: str
    outcome: Outcome
    topic: str = ""
    channel: str = ""
    node: str = ""
    user_agent: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    detail: str = ""
    time: str = ""


def to_line(entry: AuditEntry, now: float) -> bytes:
    """Encode an entry as a line, with its newline; `now`: seconds since the epoch."""
    fields = asdict(entry)
    arguments = json.dumps(fields.pop("arguments"), default=str)
    short = {
        name: _cut(str(value), DETAIL_MAX if name == "detail" else TEXT_MAX)
        for name, value in fields.items()
    }
    recorded = datetime.datetime.fromtimestamp(now, datetime.UTC).isoformat(timespec="milliseconds")
    short["time"] = short["time"] or recorded.replace("+00:00", "Z")
    ordered: dict[str, Any] = {"time": short.pop("time"), **short}
    is_long = len(arguments) > ARGUMENTS_MAX
    ordered["arguments"] = _cut(arguments, ARGUMENTS_MAX) if is_long else json.loads(arguments)
    return json.dumps(ordered, separators=(",", ":")).encode("ascii") + b"\n"


def from_line(line: bytes) -> dict[str, Any] | None:
    """Decode a line; None: it is not an entry (cut short by a crash, or damaged)."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("time"), str) else None


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - len(CUT)] + CUT


@dataclass(slots=True)
class AuditPage:
    """A page of entries, newest first; `next`: where older ones begin, None: there are none."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    next: str | None = None
    scanned_bytes: int = 0


class AuditFile:
    """The files of one audit log."""

    def __init__(self, path: str, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        self.path = path
        self._file_bytes_max = file_bytes_max

    def check(self) -> None:
        """Check that entries can be written. Raises OSError."""
        os.close(self._open())

    def append(self, line: bytes) -> None:
        """Write one line durably.

        Raises:
            OSError: the line was not written, or it is not certain that it was.
        """
        file = self._open()
        try:
            size = os.fstat(file).st_size
            if size and size + len(line) > self._file_bytes_max:
                os.close(file)
                file = -1
                self._rotate()
                file = self._open()
                size = 0
            if size and os.pread(file, 1, size - 1) != b"\n":
                line = b"\n" + line
            if os.write(file, line) != len(line):
                raise OSError(errno.ENOSPC, "no space left for the whole entry")
            os.fsync(file)
        finally:
            if file >= 0:
                os.close(file)

    def _open(self) -> int:
        # Neither a link nor a FIFO at this path may divert the entries or block their writer.
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            file = os.open(self.path, flags)
        except FileNotFoundError:
            file = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            self._sync_folder()  # or a crash could remove the file, and synced entries with it
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file

    def _rotate(self) -> None:
        # The oldest first: no file replaces one that is still needed. A crash in between leaves a
        # gap in the numbers, which readers skip.
        for number in range(KEPT, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._name(number - 1), self._name(number))
        self._sync_folder()

    def _name(self, number: int) -> str:
        return f"{self.path}.{number}" if number else self.path

    def _sync_folder(self) -> None:
        folder = os.open(os.path.dirname(self.path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def page(self, before: str, limit: int, wanted: Wanted) -> AuditPage:
        """Return the matching entries before a place, newest first.

        Args:
            before: `next` of the previous page; empty: begin with the newest entry.
            limit: maximum number of entries.
            wanted: whether an entry matches.
        """
        page = AuditPage()
        for name, line in self._lines(before):
            if len(page.entries) >= limit or page.scanned_bytes >= SCAN_BYTES_MAX:
                return page
            page.scanned_bytes += len(line) + 1
            page.next = name
            entry = from_line(line)
            if entry is not None and wanted(entry):
                page.entries.append(entry)
        page.next = None
        return page

    def _lines(self, before: str) -> Iterator[tuple[str, bytes]]:
        """Yield each line, newest first, with the place to continue before it."""
        found = _PLACE.fullmatch(before)
        if before and found is None:
            return
        sought, offset = (int(found[1]), int(found[2])) if found else (None, 0)
        for number in range(KEPT + 1):
            try:
                file = os.open(self._name(number), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                continue
            try:
                status = os.fstat(file)
                if sought is None or status.st_ino == sought:
                    end = status.st_size if sought is None else min(status.st_size, offset)
                    sought = None
                    for place, line in _backwards(file, end):
                        yield f"{status.st_ino}-{place}", line
            finally:
                os.close(file)


def _backwards(file: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file before `end`, last first, with their offsets."""
    rest = b""
    while end > 0:
        begin = max(0, end - BLOCK_BYTES)
        block = os.pread(file, end - begin, begin) + rest
        lines = block.split(b"\n")
        # No entry is longer than this, so such data is not an entry and is skipped.
        rest = lines[0] if begin and len(lines[0]) <= LINE_BYTES_MAX else b""
        place = begin + len(block)
        for line in reversed(lines[1:] if begin else lines):
            place -= len(line)
            if line:
                yield place, line
            place -= 1
        end = begin
