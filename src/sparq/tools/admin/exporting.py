"""`export`: write the messages of a topic or channel as JSON lines or CSV, merged by time.

1. It holds one page of messages per nsqd in memory, however many messages there are.
2. CSV is for spreadsheets: a cell that a spreadsheet would read as a formula begins with an
   apostrophe. JSON lines contain every body unchanged, as text or base64.
3. The output file must not exist. If the export is incomplete, the message names the file, and the
   exit status is 1.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from sparq.cluster.nodes import Node
from sparq.tools.admin.finding import SEARCH, check_search
from sparq.tools.admin.job import Job
from sparq.tools.admin.reading import (
    PAGE_MAX,
    Message,
    bodies,
    by_time,
    nodes_of,
    pages,
    search_query,
)
from sparq.tools.command_line import ToolError
from sparq.tools.pipes import PipeOutput

COLUMNS: Final = (
    *("node", "topic", "channel", "id", "index", "time", "attempts", "state", "size"),
    *("encoding", "cut", "body"),
)
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
TOGETHER: Final = 500
"""Number of messages written at once."""

Write = Callable[[bytes], Awaitable[None]]


async def export(job: Job) -> int:
    """Write the messages; return the exit status.

    Raises:
        UsageError: flags do not go together.
        ToolError: there is no such topic or channel, or the file cannot be written.
    """
    check_search(job)
    nodes = await nodes_of(job)
    count = cut = 0
    async with _target(job) as write:
        if job.options.format == "csv":
            await write(csv_lines([COLUMNS]))
        async for some in in_groups(merged([_of_one(job, node) for node in nodes])):
            count += len(some)
            cut += sum(message.get("cut") is True for message in some)
            await write(_lines(job, some))
    where = job.options.output or "standard output"
    job.warn(f"wrote {count:,} messages of {job.what} to {where}")
    if cut:
        job.warn(f"{cut:,} bodies were cut after {job.options.body_bytes:,} bytes and are marked")
    if job.errors:
        job.warn(f"{where} is incomplete")
    return max(job.warn_of_errors(), int(bool(cut)))


async def _of_one(job: Job, node: Node) -> AsyncIterator[Message]:
    query = search_query(job, limit=str(PAGE_MAX), **bodies(job.options.body_bytes))
    async for page in pages(job, node, SEARCH, query):
        for message in page:
            yield message


async def merged(sources: Sequence[AsyncIterator[Message]]) -> AsyncIterator[Message]:
    """Merge the sources by time; each source is sorted by time."""
    heads = [(await anext(source, None), source) for source in sources]
    # Not heapq.merge, which takes no asynchronous iterators; with one source per nsqd, a search
    # through their heads is short.
    waiting = [(head, source) for head, source in heads if head is not None]
    while waiting:
        at = min(range(len(waiting)), key=lambda index: by_time(waiting[index][0]))
        head, source = waiting[at]
        yield head
        following = await anext(source, None)
        if following is None:
            del waiting[at]
        else:
            waiting[at] = following, source


async def in_groups(source: AsyncIterator[Message]) -> AsyncIterator[list[Message]]:
    """Group the messages into lists of `TOGETHER`, to save writes."""
    some: list[Message] = []
    async for message in source:
        some.append(message)
        if len(some) == TOGETHER:
            yield some
            some = []
    if some:
        yield some


def _lines(job: Job, messages: Sequence[Message]) -> bytes:
    names = {"topic": job.topic, "channel": job.channel}
    if job.options.format == "csv":
        rows = ({**names, **message} for message in messages)
        return csv_lines([[_cell(row.get(name)) for name in COLUMNS] for row in rows])
    texts = (json.dumps({**names, **message}, ensure_ascii=False) for message in messages)
    return "".join(f"{text}\n" for text in texts).encode("utf-8", "surrogatepass")


def csv_lines(rows: Sequence[Sequence[str]]) -> bytes:
    """Format rows as CSV (RFC 4180)."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return f"'{text}" if text.startswith(FORMULA) else text


@asynccontextmanager
async def _target(job: Job) -> AsyncIterator[Write]:
    """Open the output of the export.

    Raises:
        ToolError: the file already exists, or cannot be created or written.
    """
    path = job.options.output
    if not path:
        yield job.output.write
        return
    try:
        # 0o600: message bodies may be confidential.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ToolError(f"--output={path}: {error.strerror}: nothing was done") from None
    try:
        yield PipeOutput(descriptor).write
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
