"""The audit log of a daemon: a file, the last entries in memory, and optionally a topic.

1. An entry is durable when `record` returns; a thread writes the file, in the order of the calls.
   `record` never raises, because the action has already been done. A failed write is logged, and
   `unavailable` returns the reason before the next change. If the disk hangs, at most
   `UNWRITTEN_MAX` entries wait in memory; further ones are only in the program's log.
2. Refused requests cannot displace entries of actions: of each kind, `REFUSED_MAX` refusals are
   written, then one per `refused_seconds`; the next entry has the number of those left out.
   Refusals alone would need months to fill the files.
3. The topic gets the same entries as the file, but `record` does not wait for it: at most
   `UNPUBLISHED_MAX` entries wait to be published.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from itertools import islice
from typing import Any, Final

from sparq.daemon.access.audit_file import AuditEntry, AuditFile, AuditPage, from_line, to_line
from sparq.program.lifecycle import StartError

REMEMBERED: Final = 1000
REFUSED_MAX: Final = 60
REFUSED_SECONDS: Final = 300.0
UNPUBLISHED_MAX: Final = 1000
UNWRITTEN_MAX: Final = 1000
PAGE_MAX: Final = 1000
FILTERS: Final = ("user", "action", "topic", "channel", "node", "outcome", "via", "remote")

Publish = Callable[[bytes], Awaitable[None]]

logger = logging.getLogger(__name__)


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
        self._remembered: deque[tuple[int, dict[str, Any]]] = deque(maxlen=REMEMBERED)
        self._count = 0
        self._why_not = ""
        # Threads of a pool run in any order; the lock lets one write at a time, in order (rule 1).
        self._order = asyncio.Lock()
        self._publish = publish
        self._unpublished: asyncio.Queue[bytes] = asyncio.Queue(UNPUBLISHED_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._publisher: asyncio.Task[None] | None = None
        self._refused_seconds = refused_seconds
        self._refusals: dict[str, _Budget] = {}
        if self._file is not None:
            try:
                self._file.check()
            except OSError as error:
                raise StartError(f"{flag}: {path}: {_reason(error)}") from None

    @property
    def is_kept(self) -> bool:
        """Whether entries are kept after this process ends."""
        return self._file is not None

    async def record(self, entry: AuditEntry) -> None:
        """Write an entry; on return it is on disk, or the program's log has the failure."""
        line = to_line(entry, time.time())
        self._remember(line)
        self._pass_on(line)
        if self._file is None:
            return
        if len(self._tasks) >= UNWRITTEN_MAX:
            logger.error(
                "AUDIT: entry not written, %d entries are waiting for the disk", UNWRITTEN_MAX
            )
            return
        # The write continues even if the waiting client disconnects.
        await asyncio.shield(self._background(self._write(line)))

    async def unavailable(self) -> str:
        """Return why entries cannot be written now; empty: they can, or there is no file."""
        if self._file is None:
            return ""
        if self._why_not:
            await self._write()
        return self._why_not

    def refused(self, entry: AuditEntry, kind: str = "") -> None:
        """Record a refused request, unless there were too many of this kind recently (rule 2)."""
        budget = self._refusals.setdefault(kind, _Budget(self._refused_seconds))
        left_out = budget.admit(time.monotonic())
        if left_out is None:
            return
        if left_out:
            more = f"{left_out} more refused requests were not recorded"
            entry = dataclasses.replace(entry, detail=f"{entry.detail}; {more}".lstrip("; "))
        self._background(self.record(entry))

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

        limit = max(1, min(limit, PAGE_MAX))
        if self._file is not None:
            return await asyncio.to_thread(self._file.page, before, limit, wanted)
        return self._remembered_page(before, limit, wanted)

    async def close(self) -> None:
        """Write all pending entries."""
        while self._tasks:  # a task that records a refusal starts another one, which writes it
            await asyncio.wait(self._tasks)
        if self._publisher is not None:
            self._publisher.cancel()
            await asyncio.wait([self._publisher])

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # asyncio holds only weak references to its tasks.
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _write(self, line: bytes = b"") -> None:
        """Write a line; without one, only check whether the file can be written."""
        async with self._order:
            await asyncio.to_thread(self._append, line)

    def _append(self, line: bytes) -> None:
        assert self._file is not None
        try:
            if line:
                self._file.append(line)
            else:
                self._file.check()
            self._why_not = ""
        except OSError as error:
            self._why_not = _reason(error)
            if line:
                logger.error(
                    "AUDIT: entry not written (%s): %s", self._why_not, line.decode().rstrip()
                )

    def _remember(self, line: bytes) -> None:
        logger.info("AUDIT: %s", line.decode().rstrip())
        entry = from_line(line)
        assert entry is not None
        self._count += 1
        self._remembered.append((self._count, entry))

    def _remembered_page(
        self, before: str, limit: int, wanted: Callable[[dict[str, Any]], bool]
    ) -> AuditPage:
        end = int(before) if before.isascii() and before.isdigit() else self._count + 1
        older = (
            (number, entry)
            for number, entry in reversed(self._remembered)
            if number < end and wanted(entry)
        )
        found = list(islice(older, limit + 1))
        page = AuditPage([entry for _, entry in found[:limit]])
        if len(found) > limit:
            page.next = str(found[limit - 1][0])
        return page

    def _pass_on(self, line: bytes) -> None:
        if self._publish is None:
            return
        if self._publisher is None:
            self._publisher = asyncio.get_running_loop().create_task(self._publish_all())
        try:
            self._unpublished.put_nowait(line.rstrip())
        except asyncio.QueueFull:
            logger.error("AUDIT: entry not published, %d entries are waiting", UNPUBLISHED_MAX)

    async def _publish_all(self) -> None:
        assert self._publish is not None
        while True:
            line = await self._unpublished.get()
            try:
                await self._publish(line)
            except Exception as error:
                # Whatever error occurs, publishing goes on with the next entry.
                logger.error("AUDIT: entry not published: %s", error)


class _Budget:
    """Allow `REFUSED_MAX` entries, then one more per `seconds`, and count the others."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._room = float(REFUSED_MAX)
        self._at = float("-inf")
        self._left_out = 0

    def admit(self, now: float) -> int | None:
        """Return how many were left out since the last allowed one; None: this one is left out."""
        self._room = min(REFUSED_MAX, self._room + (now - self._at) / self._seconds)
        self._at = now
        if self._room < 1:
            self._left_out += 1
            return None
        self._room -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
