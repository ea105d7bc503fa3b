"""The audit log of a daemon: a file, the last entries in memory, and optionally a topic.

1. An entry is durable when `record` returns; a thread writes the file, in the order of the calls,
   each entry with its own fsync. `record` never raises, because the action has already been done. A
   failed write is logged, and `unavailable` returns the reason before the next change. If the disk
   hangs, at most `UNWRITTEN_MAX` entries wait in memory; further ones are only in the program's
   log.
2. Refused requests cannot displace entries of actions: of each kind, `REFUSED_MAX` refusals are
   written, then one per `refused_seconds`; the next entry has the number of those left out.
   Refusals alone would need months to fill the files.
3. The topic gets the same entries as the file, but `record` does not wait for it: at most
   `UNPUBLISHED_MAX` entries wait to be published.
4. The file is opened again for each entry, so that a file rotated by another program is no longer
   written to. At `FILE_BYTES_MAX` bytes it becomes `.1`, `.1` becomes `.2`, and so on up to `KEPT`;
   only the owner may read them.
5. A line cut short by a crash is terminated by the next entry, and skipped by readers. A line is
   JSON in ASCII, so a client's text can neither begin a new line nor send control codes to a
   terminal. Its length is limited: long texts are cut and marked.
6. A reader does a limited amount of work and returns where to continue: `inode-offset` of a line,
   which stays valid across a rotation.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import errno
import itertools
import json
import logging
import os
import re
import stat
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, get_args

from sparq.daemon.access.rules import Caller, Via
from sparq.daemon.files import sync_folder
from sparq.program.lifecycle import StartError

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
REMEMBERED: Final = 1000
REFUSED_MAX: Final = 60
REFUSED_SECONDS: Final = 300.0
UNPUBLISHED_MAX: Final = 1000
UNWRITTEN_MAX: Final = 1000
PAGE_MAX: Final = 1000
FILTERS: Final = ("user", "action", "topic", "channel", "node", "outcome", "via", "remote")

Publish = Callable[[bytes], Awaitable[None]]

logger = logging.getLogger(__name__)
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


def entry_of(caller: Caller, action: str, outcome: Outcome, **facts: Any) -> AuditEntry:
    """Build an audit entry of a caller's action; `facts`: further fields of the entry."""
    told = (caller.name, caller.via, caller.remote, action, outcome)
    return AuditEntry(*told, user_agent=caller.user_agent, **facts)


def to_line(entry: AuditEntry, now: float) -> bytes:
    """Encode an entry as a line, with its newline; `now`: seconds since the epoch."""
    fields = asdict(entry)
    arguments = json.dumps(fields.pop("arguments"), default=str)
    recorded = datetime.datetime.fromtimestamp(now, datetime.UTC).isoformat(timespec="milliseconds")
    line: dict[str, Any] = {"time": recorded.replace("+00:00", "Z")}
    for name, value in fields.items():
        line[name] = _cut(str(value), DETAIL_MAX if name == "detail" else TEXT_MAX)
    is_long = len(arguments) > ARGUMENTS_MAX
    line["arguments"] = _cut(arguments, ARGUMENTS_MAX) if is_long else json.loads(arguments)
    return json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"


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


def page_of(lines: Iterator[tuple[str, bytes]], limit: int, wanted: Wanted) -> AuditPage:
    """Return a page of the entries that match.

    Args:
        lines: newest first, each with the place to continue before it.
        limit: maximum number of entries.
        wanted: whether an entry matches.
    """
    page = AuditPage()
    for place, line in lines:
        if len(page.entries) >= limit or page.scanned_bytes >= SCAN_BYTES_MAX:
            return page
        page.scanned_bytes += len(line) + 1
        page.next = place
        entry = from_line(line)
        if entry is not None and wanted(entry):
            page.entries.append(entry)
    page.next = None
    return page


@dataclass(frozen=True, slots=True)
class AuditFile:
    """The files of one audit log."""

    path: str
    file_bytes_max: int = FILE_BYTES_MAX

    def append(self, line: bytes = b"") -> None:
        """Write one line durably; without one, only check that entries can be written.

        Raises:
            OSError: the line was not written, or it is not certain that it was.
        """
        with contextlib.suppress(FileNotFoundError):
            size = os.lstat(self.path).st_size
            if size and size + len(line) > self.file_bytes_max:
                self._rotate()
        file = self._open()
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                line = b"\n" + line
            if os.write(file, line) != len(line):
                raise OSError(errno.ENOSPC, "no space left for the whole entry")
            os.fsync(file)
        finally:
            os.close(file)

    def _open(self) -> int:
        # Neither a link nor a FIFO at this path may divert the entries or block their writer.
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            file = os.open(self.path, flags)
        except FileNotFoundError:
            file = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            sync_folder(self.path)  # or a crash could remove the file, and synced entries with it
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
        sync_folder(self.path)

    def _name(self, number: int) -> str:
        return f"{self.path}.{number}" if number else self.path

    def lines(self, before: str) -> Iterator[tuple[str, bytes]]:
        """Yield each line before a place, newest first, with the place to continue before it.

        `before`: `next` of the previous page; empty: begin with the newest entry.
        """
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


class _RefusalLimit:
    """Allows `REFUSED_MAX` entries at once, then one more per `seconds`; counts the others."""

    def __init__(self, seconds: float) -> None:
        self.left_out = 0
        self._seconds = seconds
        # One number, the time up to which the limit is used up: nothing has to be refilled.
        self._used_until = 0.0

    def allows(self, now: float) -> bool:
        """Whether an entry may be written now; if so, it uses up the limit."""
        used_until = max(self._used_until, now) + self._seconds
        if used_until > now + REFUSED_MAX * self._seconds:
            self.left_out += 1
            return False
        self._used_until = used_until
        return True


class AuditLog:
    """The audit log of one daemon."""

    def __init__(
        self,
        path: str = "",
        publish: Publish | None = None,
        *,
        flag: str = "--audit-log",
        refused_seconds: float = REFUSED_SECONDS,
    ) -> None:
        """`path`: the file, from the option `flag`; empty: memory only.

        Raises:
            StartError: the file cannot be written.
        """
        self._file = AuditFile(path) if path else None
        # The last lines, each with its number.
        self._remembered: deque[tuple[str, bytes]] = deque(maxlen=REMEMBERED)
        self._numbers = itertools.count(1)
        self._why_not = ""
        # Threads of a pool run in any order; the lock lets one write at a time, in order (rule 1).
        self._order = asyncio.Lock()
        self._publish = publish
        self._publish_order = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()
        self._publishes: set[asyncio.Task[None]] = set()
        self._refusals: dict[str, _RefusalLimit] = {}
        self._refused_seconds = refused_seconds
        if self._file is not None:
            try:
                self._file.append()
            except OSError as error:
                reason = error.strerror or str(error)
                raise StartError(f"{flag}: {path}: {reason}") from None

    @property
    def is_kept(self) -> bool:
        """Whether entries are kept after this process ends."""
        return self._file is not None

    async def record(self, entry: AuditEntry) -> None:
        """Write an entry; on return it is on disk, or the program's log has the failure."""
        line = to_line(entry, time.time())
        logger.info("AUDIT: %s", line.decode().rstrip())
        self._remembered.append((str(next(self._numbers)), line))
        if self._publish is not None:
            if len(self._publishes) < UNPUBLISHED_MAX:
                _start(self._publish_line(self._publish, line.rstrip()), self._publishes)
            else:
                logger.error("AUDIT: entry not published, %d entries are waiting", UNPUBLISHED_MAX)
        if self._file is None:
            return
        if len(self._writes) >= UNWRITTEN_MAX:
            logger.error(
                "AUDIT: entry not written, %d entries are waiting for the disk", UNWRITTEN_MAX
            )
            return
        # The write continues even if the waiting client disconnects.
        await asyncio.shield(_start(self._write(line), self._writes))

    async def unavailable(self) -> str:
        """Return why entries cannot be written now; empty: they can, or there is no file."""
        if self._why_not:
            await self._write()
        return self._why_not

    def refused(self, entry: AuditEntry, kind: str = "") -> None:
        """Record a refused request, unless there were too many of this kind recently (rule 2)."""
        limit = self._refusals.setdefault(kind, _RefusalLimit(self._refused_seconds))
        if not limit.allows(time.monotonic()):
            return
        if limit.left_out:
            more = f"{limit.left_out} more refused requests were not recorded"
            entry = dataclasses.replace(entry, detail=f"{entry.detail}; {more}".lstrip("; "))
            limit.left_out = 0
        _start(self.record(entry), self._writes)

    async def page(
        self, before: str = "", limit: int = 50, filters: Mapping[str, str] | None = None
    ) -> AuditPage:
        """Return a page of entries, newest first.

        Args:
            before: `next` of the previous page; empty: begin with the newest entry.
            limit: maximum number of entries. As the work per page is limited, a page may have
                fewer and still have a `next`.
            filters: texts by field (`FILTERS`), compared for equality; empty ones are ignored.
        """
        sought = {key: text for key, text in (filters or {}).items() if text and key in FILTERS}

        def wanted(entry: dict[str, Any]) -> bool:
            return all(entry.get(key) == text for key, text in sought.items())

        if self._file is not None:
            lines = self._file.lines(before)
        else:
            lines = reversed(tuple(self._remembered))
            if before:
                # An entry that is not remembered any more has none before it.
                at_place = itertools.dropwhile(lambda one: one[0] != before, lines)
                lines = itertools.islice(at_place, 1, None)
        return await asyncio.to_thread(page_of, lines, max(1, min(limit, PAGE_MAX)), wanted)

    async def close(self) -> None:
        """Write all pending entries."""
        while self._writes:  # a task that records a refusal starts another one, which writes it
            await asyncio.wait(self._writes)
        for task in self._publishes:
            task.cancel()
        if self._publishes:
            await asyncio.wait(self._publishes)

    async def _write(self, line: bytes = b"") -> None:
        """Write a line; without one, only check whether the file can be written."""
        assert self._file is not None
        async with self._order:
            try:
                await asyncio.to_thread(self._file.append, line)
                self._why_not = ""
            except OSError as error:
                self._why_not = error.strerror or str(error)
                if line:
                    shown = line.decode().rstrip()
                    logger.error("AUDIT: entry not written (%s): %s", self._why_not, shown)

    async def _publish_line(self, publish: Publish, line: bytes) -> None:
        async with self._publish_order:
            try:
                await publish(line)
            except Exception as error:
                # Whatever error occurs, publishing goes on with the next entry.
                logger.error("AUDIT: entry not published: %s", error)


def _start(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    """Start a task and keep it in `tasks` until it is done."""
    # asyncio holds only weak references to its tasks.
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
