"""The audit log's entries and its file: appended and synced one by one, rotated, read from its end.

1. An entry is on disk when `append` returns. Actions of people are few, so each has its own fsync.
2. The file is opened anew for each entry: what another program rotates away is not written to.
3. `FILE_BYTES_MAX` bytes, then it becomes `.1`, `.1` becomes `.2`, and so on up to `KEPT`; only the
   owner may read them.
4. A line that a crash has cut short is ended by the next one, and passed over by readers.
5. A line is JSON in ASCII, so nothing that a client sends can begin a line of its own or speak to a
   terminal, and it is bounded: long texts are cut and marked.
6. A reader does a bounded amount of work and says where to go on: `inode-offset` of a line, which
   holds across a rotation.
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
"""How much of the log one page looks through."""

TEXT_MAX: Final = 512
DETAIL_MAX: Final = 2048
ARGUMENTS_MAX: Final = 2048
LINE_BYTES_MAX: Final = 64 << 10
CUT: Final = "..."
_PLACE = re.compile(r"([0-9]{1,20})-([0-9]{1,20})", re.ASCII)

Wanted = Callable[[dict[str, Any]], bool]


@dataclass(frozen=True, slots=True)
class Entry:
    """One action.

    Attributes:
        user: who, as the token file or the proxy names him; empty: nobody is named.
        via: how that is known.
        remote: the client's address.
        action: as in NSQ's notification, such as `empty_channel`.
        node: the nsqd that it is about, `host:port`; empty: all.
        arguments: further ones, such as `to` of a seek or the ids of messages.
        outcome: `partly`: at some nodes only.
        detail: errors by node, or what came of it.
        time: empty: when it is recorded.
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


def to_line(entry: Entry, now: float) -> bytes:
    """The line of an entry, with its newline; `now`: seconds since the epoch."""
    fields = asdict(entry)
    arguments = json.dumps(fields.pop("arguments"), default=str)
    short = {
        name: _cut(str(value), DETAIL_MAX if name == "detail" else TEXT_MAX)
        for name, value in fields.items()
    }
    recorded = datetime.datetime.fromtimestamp(now, datetime.UTC).isoformat(timespec="milliseconds")
    short["time"] = short["time"] or recorded.replace("+00:00", "Z")
    told: dict[str, Any] = {"time": short.pop("time"), **short}
    is_long = len(arguments) > ARGUMENTS_MAX
    told["arguments"] = _cut(arguments, ARGUMENTS_MAX) if is_long else json.loads(arguments)
    return json.dumps(told, separators=(",", ":")).encode("ascii") + b"\n"


def from_line(line: bytes) -> dict[str, Any] | None:
    """The entry of a line; None for one that is none (cut short by a crash, or damaged)."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("time"), str) else None


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - len(CUT)] + CUT


@dataclass(slots=True)
class Page:
    """Entries, newest first; `next`: where older ones begin, None: there are none."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    next: str | None = None
    scanned_bytes: int = 0


class AuditFile:
    """The files of one audit log."""

    def __init__(self, path: str, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        self.path = path
        self._file_bytes_max = file_bytes_max

    def check(self) -> None:
        """Make sure that entries can be written. Raises OSError."""
        os.close(self._open())

    def append(self, line: bytes) -> None:
        """Write one line durably.

        Raises:
            OSError: it is not there, or not for sure.
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
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            file = os.open(self.path, flags)
        except FileNotFoundError:
            file = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            self._sync_folder()
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "it is no file")
        return file

    def _rotate(self) -> None:
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

    def page(self, before: str, limit: int, wanted: Wanted) -> Page:
        """Entries that are wanted, newest first, from before a place on.

        Args:
            before: `next` of the page before; empty: the newest.
            limit: so many entries at most.
            wanted: which ones.
        """
        page = Page()
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
        """Each line from the newest on, with the place that is before it."""
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
    """The lines of a file before `end`, last first, with their offsets."""
    rest = b""
    while end > 0:
        begin = max(0, end - BLOCK_BYTES)
        block = os.pread(file, end - begin, begin) + rest
        lines = block.split(b"\n")
        # No entry is so long: the pieces of what is there instead are passed over.
        rest = lines[0] if begin and len(lines[0]) <= LINE_BYTES_MAX else b""
        place = begin + len(block)
        for line in reversed(lines[1:] if begin else lines):
            place -= len(line)
            if line:
                yield place, line
            place -= 1
        end = begin
