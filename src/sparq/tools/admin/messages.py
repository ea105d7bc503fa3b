"""`find peek export requeue finish cancel copy redrive`: show single messages, or act on them.

Messages come from nsqd's inspection routes:

1. Reading takes no messages: attempts, order and depth stay as they are.
2. An nsqd that cannot be reached, has no such routes (Go's), or sends an unreadable answer, is
   listed in the job's errors; the others give their part. `find` and `peek` ask all at once, each
   with bounded requests, and merge the results by time. `export` holds one page of messages per
   nsqd in memory.
3. CSV is for spreadsheets: a cell that a spreadsheet would read as a formula begins with an
   apostrophe. JSON lines contain every body unchanged, as text or base64.
4. The file of an export must not exist. If the export is incomplete, the message names the file,
   and the exit status is 1.
5. Verbs that act on messages take ids from the command line, or with `-` from standard input, as
   `find --ids` prints them. Every nsqd that has the topic gets all ids and acts on the messages it
   has: an id belongs to one nsqd only. An id that no nsqd acted on is reported with the nsqds'
   reasons.
6. `redrive` sends dead letters back to the topic and channel that they came from: with ids those
   letters, as `requeue` does; without ids, all letters that wait in the channel when it begins, at
   most `--rate` per second. What is left is what the nsqds say afterwards: letters that they
   refused, that failed again meanwhile, or that a consumer holds. The channel is created if the
   dead-letter topic has no channel yet: the first channel of a topic gets all messages that waited
   there, and a later one none.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from sparq.cluster import actions
from sparq.cluster.actions import IDS_MAX
from sparq.cluster.figures import SelectionResult, TopicFigures, checked
from sparq.cluster.fleet import Node
from sparq.cluster.messages import Message, node_message, node_page
from sparq.cluster.redriving import RedriveProgress
from sparq.cluster.redriving import redrive as redrive_at
from sparq.cluster.upstream import UpstreamError
from sparq.protocol.dead_letters import REDRIVE_CHANNEL
from sparq.protocol.names import is_valid_name, one_line, quote
from sparq.tools.admin.job import Job, Survey, in_words, known, survey
from sparq.tools.commands import ToolError, UsageError
from sparq.tools.common import progress_shown
from sparq.tools.tables import duration, table
from sparq.tools.terminal import STDIN, Pipe

SEARCH: Final = "/topic/search"
HEADINGS: Final = ("id", "node", "time", "state", "attempts", "size", "body")
BODY_MAX: Final = 80
PAGE_MAX: Final = 1000
BUDGET_MS: Final = "500"

COLUMNS: Final = (
    *("node", "topic", "channel", "id", "index", "time", "attempts", "state", "size"),
    *("encoding", "cut", "body"),
)
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
TOGETHER: Final = 500
"""Number of messages that `export` writes at once."""

PAST: Final = {
    "requeue": "requeued",
    "finish": "finished",
    "cancel": "cancelled",
    "copy": "copied",
    "redrive": "redriven",
}
INPUT_BYTES_MAX: Final = 64 << 20
SHOWN_MAX: Final = 20
OTHER_NODE: Final = "it belongs to another node"
"""nsqd's reason for refusing an id that another nsqd has assigned."""

_ID: Final = re.compile(r"[0-9a-f]{16}")


# Reading


async def nodes_of(job: Job) -> list[Node]:
    """Return the nsqds that have the topic or channel and answer. Raises ToolError: none has it."""
    found = await survey(job.fleet, job.topic, job.channel)
    job.errors |= found.errors
    nodes = [found.nodes[address] for address in found.having if address in found.nodes]
    if not nodes and not job.errors:
        raise ToolError(f"no nsqd has the {job.what}")
    return nodes


async def pages(
    job: Job,
    node: Node,
    path: str,
    query: Mapping[str, str],
    searched: dict[str, float] | None = None,
) -> AsyncIterator[list[Message]]:
    """Yield pages of one nsqd's messages; an error ends them, and is one of the job's.

    Args:
        job: the job.
        node: the nsqd.
        path: an inspection route.
        query: its parameters.
        searched: receives the fraction of its log that each nsqd has searched, by its address.
    """
    after: str | None = ""
    while after is not None:
        try:
            page, messages = await node_page(job.fleet, node, path, {**query, "after": after})
        except UpstreamError as error:
            job.errors |= known({node.address: error.reason})
            return
        yield messages
        if searched is not None:
            searched[node.address] = page.progress
        # The same token again would make this loop endless: nsqd is not trusted. Even the last page
        # of a log has a `next`, for clients that follow the log; a page of a search may be empty.
        is_end = page.done or page.next == after or not (messages or path == SEARCH)
        after = None if is_end else page.next


async def first_messages(
    job: Job,
    path: str,
    query: Mapping[str, str],
    limit: int,
    searched: dict[str, float] | None = None,
) -> list[Message]:
    """Return the first messages of each nsqd, sorted by time; see `pages`."""

    async def read(node: Node) -> list[Message]:
        messages: list[Message] = []
        async for page in pages(job, node, path, query, searched):
            messages += page
            if len(messages) >= limit:
                break
        return messages[:limit]

    found = await asyncio.gather(*map(read, await nodes_of(job)))
    return sorted((one for some in found for one in some), key=by_time)


def by_time(message: Message) -> tuple[int, str]:
    """Sort key: the time at which a message was published, then its id."""
    return int(message["timestamp"]), str(message["id"])


def _search_query(job: Job, limit: int) -> dict[str, str]:
    """Return the parameters of `/topic/search` that the flags ask for.

    Raises:
        UsageError: flags do not go together; the text names the flag.
    """
    job.check_names()
    options = job.options
    if not job.channel and (options.attempts or options.state):
        raise UsageError("--attempts and --state need a channel: name one after the topic")
    return {
        **{"topic": job.topic, "channel": job.channel, "text": options.text},
        **{"json": options.where, "attempts": options.attempts, "state": options.state},
        **{"from": options.start, "to": options.end, "budget_ms": BUDGET_MS},
        **{"limit": str(min(limit, PAGE_MAX)), **_bodies(options.body_bytes)},
    }


def _bodies(size: int) -> dict[str, str]:
    """Return the parameters for this number of bytes of each body."""
    return {"bodies": "true", "body_bytes": str(size)} if size else {"bodies": "false"}


# Showing


async def find(job: Job) -> int:
    """Print the messages found; return the exit status, which is 1 also if an id is not found.

    Raises:
        UsageError: flags do not go together.
        ToolError: there is no such topic or channel, or no such message.
    """
    options = job.options
    query = _search_query(job, options.limit)
    if options.id:
        one = {"topic": job.topic, "channel": job.channel, "id": options.id}
        messages = await _with_id(job, await nodes_of(job), one | _bodies(options.body_bytes))
        if not messages:
            job.warn_of_errors()
            raise ToolError(f"no nsqd that answered has message {options.id} of {job.what}")
    else:
        parts: dict[str, float] = {}
        async with progress_shown(
            lambda: f"searched {sum(parts.values()) / max(1, len(parts)):.0%}"
        ):
            messages = await first_messages(job, SEARCH, query, options.limit, parts)
        messages = messages[: options.limit]
    if options.ids:
        await job.say(*(str(message["id"]) for message in messages))
        return job.warn_of_errors()
    return await _show(job, messages)


async def _with_id(job: Job, nodes: Iterable[Node], query: dict[str, str]) -> list[Message]:
    """Return the messages of an id; add to the job's errors why nsqds did not answer."""
    answers, errors = await job.fleet.each(nodes, lambda node: node_message(job.fleet, node, query))
    job.errors |= known(errors)
    return [*answers.values()]


async def peek(job: Job) -> int:
    """Print messages; return the exit status.

    Raises:
        UsageError: flags do not go together.
        ToolError: there is no such topic or channel.
    """
    job.check_names()
    options = job.options
    if options.state == "finished" or (options.state and not job.channel):
        raise UsageError(
            "--state is waiting, in_flight or deferred, and needs a channel; for finished messages"
            " use find"
        )
    if options.start and job.channel:
        raise UsageError("--from needs a topic alone: remove the channel, or use find")
    limit = options.limit + 1  # one more, to know whether there are more
    query = {"topic": job.topic, "limit": str(min(limit, PAGE_MAX)), **_bodies(options.body_bytes)}
    if job.channel:
        path = "/channel/messages"
        query |= {"channel": job.channel, "state": options.state or "waiting"}
    else:
        # The newest of the topic are among the newest `limit` of each nsqd.
        path = "/topic/messages"
        query |= {"from": options.start or f"last:{limit}"}
    messages = await first_messages(job, path, query, limit)
    if options.state == "deferred":
        messages.sort(key=lambda message: (str(message.get("due")), str(message["id"])))
    is_newest = not job.channel and not options.start
    chosen = messages[-options.limit :] if is_newest else messages[: options.limit]
    which = "newest" if is_newest else "first"
    more = f"the {which} {len(chosen):,} messages; --limit shows more"
    return await _show(job, chosen, *([more] if len(messages) > len(chosen) else []))


async def _show(job: Job, messages: Sequence[Message], *more: str) -> int:
    """Print messages as a table, or as a JSON document with all their fields; return the status."""
    rows = []
    for message in messages:
        # The body is the last column: cut it, and keep its beginning.
        text = one_line(message.get("body", ""))
        cut = "..." if len(text) > BODY_MAX or message.get("cut") else ""
        base64 = " (base64)" if message.get("encoding") == "base64" else ""
        shown = {"state": _state(message), "body": f"{text[:BODY_MAX]}{cut}{base64}"}
        rows.append({**message, **shown})
    return await job.show({"messages": messages}, *table(HEADINGS, rows), *more)


def _state(message: Message) -> str:
    """Format the state with the client that holds the message and for how long, or the due time."""
    state = message.get("state") or ""
    if state == "in_flight":
        client, held = message.get("client") or {}, message.get("in_flight_seconds")
        who = client.get("hostname") or client.get("client_id")
        time = "" if held is None else duration(held)
        return " ".join(filter(None, ("in flight", time, f"at {who}" if who else "")))
    due = message.get("due_seconds")
    if state == "deferred" and due is not None:
        return f"deferred, due in {duration(max(0.0, due))}"
    return str(state)


# Export


async def export(job: Job) -> int:
    """Write the messages as JSON lines or CSV, sorted by time; return the exit status.

    Raises:
        UsageError: flags do not go together.
        ToolError: there is no such topic or channel, or the file cannot be written.
    """
    options = job.options
    query = _search_query(job, PAGE_MAX)
    nodes = await nodes_of(job)

    async def messages_of(node: Node) -> AsyncIterator[Message]:
        async for page in pages(job, node, SEARCH, query):
            for message in page:
                yield message

    count = cut = 0
    async with _target(options.output, job.output) as write:
        if options.format == "csv":
            await write(f"{','.join(COLUMNS)}\r\n".encode())
        some: list[Message] = []
        async for message in merged([messages_of(node) for node in nodes]):
            count += 1
            cut += message.get("cut") is True
            some.append({"topic": job.topic, "channel": job.channel, **message})
            if len(some) == TOGETHER:
                await write(_lines(options.format, some))
                some = []
        await write(_lines(options.format, some))
    where = options.output or "standard output"
    job.warn(f"wrote {count:,} messages of {job.what} to {where}")
    if cut:
        job.warn(f"{cut:,} bodies were cut after {options.body_bytes:,} bytes and are marked")
    if job.errors:
        job.warn(f"{where} is incomplete")
    return max(job.warn_of_errors(), int(bool(cut)))


async def merged(sources: Sequence[AsyncIterator[Message]]) -> AsyncIterator[Message]:
    """Merge the sources by time; each source is sorted by time."""
    # Not heapq.merge, which takes no asynchronous iterators; with one source per nsqd, a search
    # through their heads is short.
    heads = {at: head for at, one in enumerate(sources) if (head := await anext(one, None))}
    while heads:
        at = min(heads, key=lambda at: by_time(heads[at]))
        yield heads.pop(at)
        if following := await anext(sources[at], None):
            heads[at] = following


def _lines(form: str, messages: Sequence[Message]) -> bytes:
    """Format messages as JSON lines or CSV (RFC 4180)."""
    if form == "csv":
        text = io.StringIO()
        rows = ([_csv_cell(message.get(name)) for name in COLUMNS] for message in messages)
        csv.writer(text).writerows(rows)
        return text.getvalue().encode("utf-8", "replace")
    texts = (json.dumps(message, ensure_ascii=False) for message in messages)
    return "".join(f"{text}\n" for text in texts).encode("utf-8", "surrogatepass")


def _csv_cell(value: Any) -> str:
    text = "" if value is None else str(value)
    text = text.lower() if isinstance(value, bool) else text
    return f"'{text}" if text.startswith(FORMULA) else text


@asynccontextmanager
async def _target(path: str, output: Pipe) -> AsyncIterator[Callable[[bytes], Awaitable[None]]]:
    """Open the output of an export; yield the function that writes to it.

    Raises:
        ToolError: the file already exists, or cannot be created or written.
    """
    if not path:
        yield output.write
        return
    try:
        # 0o600: message bodies may be confidential.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ToolError(f"--output={path}: {error.strerror}: nothing was done") from None
    try:
        yield Pipe(descriptor).write
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Acting


async def act(job: Job) -> int:
    """Act on the messages whose ids are given; return the exit status.

    Raises:
        UsageError: a word is not an id, or `copy` has no topic to copy to.
        ToolError: nothing was done.
    """
    verb, options = job.request.verb, job.options
    if verb == "copy":
        job.channel = ""
        if not is_valid_name(options.to):
            raise UsageError(f"--to takes the topic to copy to, not {quote(options.to)}")
    count = 1 if verb == "copy" else 2
    ids = await _ids(job.words[count:])
    job.check_names()
    nodes = await nodes_of(job)
    done: dict[str, str] = {}
    refused: dict[str, str] = {}

    async def locate(one: str) -> None:
        query = {"topic": job.topic, "channel": job.channel, "id": one, "bodies": "false"}
        done.update((one, message["node"]) for message in await _with_id(job, nodes, query))

    if options.dry_run:
        await asyncio.gather(*map(locate, ids))
    else:
        if verb in ("finish", "cancel"):
            sentence = f"this drops {len(ids):,} messages of {job.what}, unread"
            await job.confirm(job.channel, sentence)
        for at in range(0, len(ids), IDS_MAX):
            some = ids[at : at + IDS_MAX]
            report = await actions.messages(
                *(job.fleet, verb, job.topic, job.channel),
                # An nsqd that failed once is not asked again: each further part would wait for its
                # timeout.
                {node.address: some for node in nodes if node.address not in job.errors},
                to=getattr(options, "to", ""),
                to_all=getattr(options, "to_all", False),
            )
            job.errors |= known({one.address: one.error for one in report.errors})
            for one in report.done:
                add_selection(one.address, one.answer, done, refused)
    return await _report_selection(job, job.words[:count], ids, done, refused)


async def _ids(words: tuple[str, ...]) -> list[str]:
    """Return the ids without duplicates. Raises UsageError: one is not an id, or there are none."""
    texts = list(words)
    if words == ("-",):
        data = b""
        while read := await STDIN.read():
            data += read
            if len(data) > INPUT_BYTES_MAX:
                raise UsageError(
                    f"more than {INPUT_BYTES_MAX:,} bytes of ids on standard input: send fewer"
                )
        texts = data.decode("utf-8", "replace").split()
    for text in texts:
        if not _ID.fullmatch(text):
            raise UsageError(f"{quote(text[:80])} is not a message id: use 16 hexadecimal digits")
    if not texts:
        raise UsageError("no ids on standard input")
    return list(dict.fromkeys(texts))


def add_selection(address: str, answer: Any, done: dict[str, str], refused: dict[str, str]) -> None:
    """Add an nsqd's answer: `done` maps ids to nsqds, `refused` maps ids to reasons."""
    found = checked(answer, SelectionResult)
    done |= dict.fromkeys(found.done, address)
    for one in found.refused:
        # The nsqd that the id belongs to knows why; all others give the same reason.
        if refused.get(one.id, OTHER_NODE) == OTHER_NODE:
            refused[one.id] = one.why


async def _report_selection(
    job: Job, words: Sequence[str], ids: list[str], done: dict[str, str], refused: dict[str, str]
) -> int:
    """Report what was done where; return the exit status."""
    missing = {
        one: refused.get(one) or "no nsqd that answered has it" for one in ids if one not in done
    }
    past = ("would be " if job.options.dry_run else "") + PAST[job.request.verb]
    lines = [f"{past}: {len(done):,} of {len(ids):,} messages of {job.what}"]
    counts = sorted(Counter(done.values()).items())
    lines += [f"  {address}  {count:,}" for address, count in counts]
    shown = list(missing)[:SHOWN_MAX]
    lines += [f"  {one}  NOT DONE: {missing[one]}" for one in shown]
    if len(missing) > SHOWN_MAX:
        lines.append(f"  ... and {len(missing) - SHOWN_MAX:,} more")
    words = (*words, *((missing if job.options.json else shown) or ["-"]))
    return await job.report(
        {"done": done, "refused": missing},
        *(lines, job.errors),
        is_done=bool(done),
        is_whole=not missing,
        words=words,
    )


# Dead letters


async def redrive(job: Job) -> int:
    """Send letters back; return the exit status.

    Raises:
        UsageError: a word is not a valid name or id.
        ToolError: nothing was done.
    """
    job.channel = job.channel or REDRIVE_CHANNEL
    if len(job.words) > 2:
        return await act(job)
    job.check_names()
    found = await _redrivable(job)
    job.errors |= found.errors
    left = job.options.limit or sys.maxsize
    progress: dict[str, RedriveProgress] = {}
    for address, figures in found.having.items():
        if address in found.nodes:
            progress[address] = RedriveProgress(min(left, max(0, figures.depth)))
            left -= progress[address].total
    if job.options.dry_run:
        planned = [{"nsqd": at, "would_redrive": one.total} for at, one in progress.items()]
        return await job.show({"rows": planned}, *table(("nsqd", "would_redrive"), planned))
    query = {"topic": job.topic, "channel": job.channel}
    query |= {"to_all": "true"} if job.options.to_all else {}
    every = sum(one.total for one in progress.values())

    async def redrive_one(address: str, total: int) -> None:
        # `--rate` is the rate of the cluster: divided so that all nsqds finish at the same time.
        rate = job.options.rate * total / every if every else 0
        async for so_far in redrive_at(job.fleet, found.nodes[address], query, total, rate):
            progress[address] = so_far

    def shown() -> str:
        return f"redriven: {sum(each.done for each in progress.values()):,} of {every:,}"

    async with progress_shown(shown):
        await asyncio.gather(*(redrive_one(at, one.total) for at, one in progress.items()))
    # How many letters are in the channel now; an nsqd that does not say is left out.
    nodes = [found.nodes[address] for address in progress]
    stats = await job.fleet.stats(job.topic, job.channel, nodes=nodes)
    job.errors |= known(stats.errors)
    reasons: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    for address, one in progress.items():
        reasons.update(one.refused)
        job.errors |= {address: in_words(one.error)} if one.error else {}
        row = {"nsqd": address, "redriven": one.done, "refused": one.refused.total(), "left": None}
        if address in stats.value:
            channel = stats.value[address].channel(job.topic, job.channel)
            row["left"] = 0 if channel is None else channel.left
        rows.append(row)
    done = sum(one.done for one in progress.values())
    lines = [f"redriven: {done:,} letters of {job.what}"]
    lines += table(("nsqd", "redriven", "refused", "left"), rows)
    lines += [f"  {count:,} NOT DONE: {why}" for why, count in reasons.most_common()]
    return await job.report(
        {"redriven": done, "refused": dict(reasons), "rows": rows},
        *(lines, job.errors),
        is_done=bool(done) or not (reasons or job.errors),
        is_whole=not reasons,
        words=(job.topic, job.channel),
    )


async def _redrivable(job: Job) -> Survey:
    """Return the nsqds that have the channel, and its depth there.

    If the topic has no channel at all, this one is created.
    """
    found = await survey(job.fleet, job.topic, job.channel)
    if found.having or found.errors:
        return found
    topic = (await survey(job.fleet, job.topic)).having.values()
    if not topic:
        raise ToolError(f"no nsqd has the topic {job.topic}: nothing was done")
    having = (each for each in topic if isinstance(each, TopicFigures))
    others = sorted({one.channel_name for each in having for one in each.channels})
    if others:
        raise ToolError(
            f"no nsqd has the {job.what}, and a new channel would have no letters: name one of its"
            f" channels ({', '.join(others)})"
        )
    if job.options.dry_run:
        raise ToolError(f"no nsqd has the {job.what}; without --dry-run it would be created")
    report = await actions.create(job.fleet, job.topic, job.channel)
    if report.failed:
        raise ToolError(f"nothing was done: {in_words(report.failed)}")
    return await survey(job.fleet, job.topic, job.channel)
