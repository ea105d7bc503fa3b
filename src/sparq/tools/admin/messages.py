"""`find peek export requeue finish cancel copy`: show single messages of all nsqds, or act on them.

Messages come from nsqd's inspection routes:

1. Reading takes no messages: attempts, order and depth stay as they are.
2. An nsqd that cannot be reached, or has no such routes (Go's), is listed in the job's errors; the
   others give their part. All are asked at once, each with bounded requests, and the results are
   merged by time. `export` holds one page of messages per nsqd in memory.
3. An nsqd's response is not trusted: entries that are not messages are skipped.
4. CSV is for spreadsheets: a cell that a spreadsheet would read as a formula begins with an
   apostrophe. JSON lines contain every body unchanged, as text or base64.
5. The file of an export must not exist. If the export is incomplete, the message names the file,
   and the exit status is 1.
6. Verbs that act on messages take ids from the command line, or with `-` from standard input, as
   `find --ids` prints them. Every nsqd that has the topic gets all ids and acts on the messages it
   has: an id belongs to one nsqd only. An id that no nsqd acted on is reported with the nsqds'
   reasons.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from sparq.cluster import actions
from sparq.cluster.actions import IDS_MAX
from sparq.cluster.cluster_stats import INT64_SPAN
from sparq.cluster.nodes import Node
from sparq.cluster.upstream import UpstreamError
from sparq.protocol.names import is_valid_name, one_line, quote
from sparq.tools.admin.job import Job, has_nothing, in_words, result_of, survey
from sparq.tools.commands import ToolError, UsageError
from sparq.tools.terminal import Input, PipeOutput, progress_shown
from sparq.tools.view import duration

Message = dict[str, Any]
SEARCH: Final = "/topic/search"
HEADINGS: Final = ("id", "node", "time", "state", "attempts", "size", "body")
BODY_MAX: Final = 80
PAGE_MAX: Final = 1000
BUDGET_MS: Final = "500"
NOT_HERE: Final = "MESSAGE_NOT_FOUND"
NAMED_MAX: Final = 3
_STAMP: Final = re.compile(r"[0-9]{1,19}")

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
LOOKUPS_AT_ONCE: Final = 16
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
    """Yield pages of one nsqd's messages, each message with the nsqd's address as `node`.

    An error ends the pages, and is added to the job's errors.

    Args:
        job: the job.
        node: the nsqd.
        path: an inspection route.
        query: its parameters.
        searched: receives the fraction of its log that each nsqd has searched, by its address.
    """
    after = ""
    while True:
        try:
            answer = await job.fleet.get(node, path, **query, after=after)
        except UpstreamError as error:
            note(job, node.address, error.reason)
            return
        yield messages_in(job, answer, node.address)
        found = answer if isinstance(answer, dict) else {}
        progress = found.get("progress")
        if searched is not None and isinstance(progress, int | float):
            searched[node.address] = float(min(1, max(0, progress)))
        following = found.get("next")
        # The same token again would make this loop endless; nsqd is not trusted (rule 3).
        if found.get("done") is True or not isinstance(following, str) or following == after:
            return
        after = following


def note(job: Job, address: str, reason: str) -> None:
    """Record why an nsqd returned nothing, unless it has nothing to return."""
    if not has_nothing(reason) and NOT_HERE not in reason:
        job.errors[address] = in_words(reason)


def messages_in(job: Job, answer: Any, address: str) -> list[Message]:
    """Return the valid messages of a response, with their nsqd's address.

    Figures that no nsqd can have are left out, and the job's errors then name the nsqd.
    """
    listed = answer.get("messages") if isinstance(answer, dict) else None
    messages = []
    for one in listed if isinstance(listed, list) else ():
        if not isinstance(one, dict) or not isinstance(one.get("id"), str):
            continue
        possible = {}
        for name, value in one.items():
            if name == "timestamp":
                is_possible = isinstance(value, str) and _STAMP.fullmatch(value) is not None
            else:
                is_possible = not isinstance(value, int | float) or abs(value) < INT64_SPAN
            if is_possible:
                possible[name] = value
        if len(possible) < len(one):
            names = ", ".join(sorted(map(one_line, one.keys() - possible.keys()))[:NAMED_MAX])
            job.errors[address] = f"unreadable figures of messages: {names}"
        messages.append({"node": address, **possible})
    return messages


def by_time(message: Message) -> tuple[int, str]:
    """Sort key: the time at which a message was published, then its id."""
    return int(message.get("timestamp", 0)), str(message["id"])


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
    nodes = await nodes_of(job)
    parts = dict.fromkeys((node.address for node in nodes), 0.0)

    async def by_id(node: Node) -> list[Message]:
        one = {"topic": job.topic, "channel": job.channel, "id": options.id}
        try:
            answer = await job.fleet.get(node, "/message", **one, **_bodies(options.body_bytes))
        except UpstreamError as error:
            note(job, node.address, error.reason)
            return []
        return messages_in(job, {"messages": [answer]}, node.address)

    async def search(node: Node) -> list[Message]:
        messages: list[Message] = []
        async for page in pages(job, node, SEARCH, query, parts):
            messages += page
            if len(messages) >= options.limit:
                break
        return messages[: options.limit]

    if options.id:
        found = await asyncio.gather(*map(by_id, nodes))
        messages = [one for some in found for one in some]
        if not messages:
            job.warn_of_errors()
            raise ToolError(f"no nsqd that answered has message {options.id} of {job.what}")
    else:
        async with progress_shown(
            lambda: f"searched {sum(parts.values()) / max(1, len(parts)):.0%}"
        ):
            found = await asyncio.gather(*map(search, nodes))
        messages = sorted((one for some in found for one in some), key=by_time)[: options.limit]
    if options.ids:
        await job.say(*(str(message["id"]) for message in messages))
    else:
        await _show(job, messages)
    return job.warn_of_errors()


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

    async def read(node: Node) -> list[Message]:
        messages: list[Message] = []
        async for page in pages(job, node, path, query):
            messages += page
            # Even the last page of a log has a `next`, for clients that follow the log.
            if len(messages) >= limit or not page:
                break
        return messages[:limit]

    found = await asyncio.gather(*map(read, await nodes_of(job)))

    def order(message: Message) -> tuple[Any, str]:
        if options.state == "deferred":
            return str(message.get("due")), str(message["id"])
        return by_time(message)

    messages = sorted((one for some in found for one in some), key=order)
    is_newest = not job.channel and not options.start
    chosen = messages[-options.limit :] if is_newest else messages[: options.limit]
    await _show(job, chosen)
    if len(messages) > len(chosen) and not options.json:
        which = "newest" if is_newest else "first"
        await job.say(f"the {which} {len(chosen):,} messages; --limit shows more")
    return job.warn_of_errors()


async def _show(job: Job, messages: Sequence[Message]) -> None:
    """Print messages as a table, or as a JSON document with all their fields."""
    if job.options.json:
        await job.say_json({"messages": messages, "errors": job.errors})
        return
    rows = []
    for message in messages:
        # The body is the last column: cut it, and keep its beginning.
        body = message.get("body")
        text = one_line(body) if isinstance(body, str) else ""
        more = "..." if len(text) > BODY_MAX or message.get("cut") is True else ""
        base64 = " (base64)" if message.get("encoding") == "base64" else ""
        row = {name: message.get(name) for name in HEADINGS}
        rows.append(row | {"state": _state(message), "body": f"{text[:BODY_MAX]}{more}{base64}"})
    await job.show(HEADINGS, rows, 4)


def _state(message: Message) -> str:
    """Format the state with the client that holds the message and for how long, or the due time."""
    state = str(message.get("state") or "")
    if state == "in_flight":
        client = message.get("client")
        who = client.get("hostname") or client.get("client_id") if isinstance(client, dict) else ""
        held = message.get("in_flight_seconds")
        time = duration(float(held)) if isinstance(held, int | float) else ""
        return " ".join(filter(None, ("in flight", time, f"at {who}" if who else "")))
    due = message.get("due_seconds")
    if state == "deferred" and isinstance(due, int | float):
        return f"deferred, due in {duration(max(0.0, float(due)))}"
    return state


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
            await write(_csv([COLUMNS]))
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


def _lines(form: str, messages: Sequence[Message]) -> bytes:
    if form != "csv":
        texts = (json.dumps(message, ensure_ascii=False) for message in messages)
        return "".join(f"{text}\n" for text in texts).encode("utf-8", "surrogatepass")
    rows = []
    for message in messages:
        cells = []
        for name in COLUMNS:
            value = message.get(name)
            text = "" if value is None else str(value)
            if isinstance(value, bool):
                text = text.lower()
            cells.append(f"'{text}" if text.startswith(FORMULA) else text)
        rows.append(cells)
    return _csv(rows)


def _csv(rows: Sequence[Sequence[str]]) -> bytes:
    """Format rows as CSV (RFC 4180)."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


@asynccontextmanager
async def _target(
    path: str, output: PipeOutput
) -> AsyncIterator[Callable[[bytes], Awaitable[None]]]:
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
        yield PipeOutput(descriptor).write
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
    count = 1 if job.verb == "copy" else 2
    if job.verb == "copy" and not is_valid_name(job.options.to):
        raise UsageError(f"--to takes the topic to copy to, not {quote(job.options.to)}")
    ids = await _ids(job.words[count:])
    job.words = job.words[:count]
    job.check_names()
    nodes = await nodes_of(job)
    done: dict[str, str] = {}
    refused: dict[str, str] = {}
    if job.options.dry_run:
        done = await _locate(job, nodes, ids)
    else:
        if job.verb in ("finish", "cancel"):
            sentence = f"this drops {len(ids):,} messages of {job.what}, unread"
            await job.confirm(job.channel, sentence)
        for at in range(0, len(ids), IDS_MAX):
            some = ids[at : at + IDS_MAX]
            report = await actions.messages(
                *(job.fleet, job.verb, job.topic, job.channel),
                # An nsqd that failed once is not asked again: each further part would wait for its
                # timeout.
                {node.address: some for node in nodes if node.address not in job.errors},
                to=getattr(job.options, "to", ""),
                to_all=getattr(job.options, "to_all", False),
            )
            for one in report.outcomes:
                if one.error:
                    note(job, one.address, one.error)
                else:
                    read_selection(one.address, one.answer, done, refused)
    return await _say(job, ids, done, refused)


async def _ids(words: tuple[str, ...]) -> list[str]:
    """Return the ids without duplicates. Raises UsageError: one is not an id, or there are none."""
    texts = list(words)
    if words == ("-",):
        data = b""
        keys = Input()
        while read := await keys.read():
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


def read_selection(
    address: str, answer: Any, done: dict[str, str], refused: dict[str, str]
) -> None:
    """Add an nsqd's answer: `done` maps ids to nsqds, `refused` maps ids to reasons."""
    page = answer if isinstance(answer, dict) else {}
    done |= {one: address for one in page.get("done") or () if isinstance(one, str)}
    for entry in page.get("refused") or ():
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            continue
        # The nsqd that the id belongs to knows why; all others give the same reason.
        if refused.get(entry["id"], OTHER_NODE) == OTHER_NODE:
            refused[entry["id"]] = str(entry.get("why", ""))


async def _locate(job: Job, nodes: list[Node], ids: list[str]) -> dict[str, str]:
    """Find out which nsqd has which message: this is the whole of a dry run."""
    found: dict[str, str] = {}
    limit = asyncio.Semaphore(LOOKUPS_AT_ONCE)

    async def locate(node: Node, one: str) -> None:
        query = {"topic": job.topic, "channel": job.channel, "id": one, "bodies": "false"}
        async with limit:
            try:
                await job.fleet.get(node, "/message", **query)
            except UpstreamError as error:
                note(job, node.address, error.reason)
            else:
                found[one] = node.address

    await asyncio.gather(*(locate(node, one) for node in nodes for one in ids))
    return found


async def _say(job: Job, ids: list[str], done: dict[str, str], refused: dict[str, str]) -> int:
    """Report what was done where; return the exit status."""
    missing = {
        one: refused.get(one) or "no nsqd that answered has it" for one in ids if one not in done
    }
    is_failure = bool(missing or job.errors)
    if job.options.json:
        document = {
            **{"verb": job.verb, "topic": job.topic, "channel": job.channel},
            "dry_run": bool(job.options.dry_run),
            "result": result_of(bool(done), is_failure),
            "done": done,
            "refused": missing,
            "errors": job.errors,
            "next": job.next_steps(job.errors, words=(*job.words, *(missing or ["-"]))),
        }
        await job.say_json(document)
        return int(is_failure)
    past = ("would be " if job.options.dry_run else "") + PAST[job.verb]
    await job.say(f"{past}: {len(done):,} of {len(ids):,} messages of {job.what}")
    counts = sorted(Counter(done.values()).items())
    await job.say(*(f"  {address}  {count:,}" for address, count in counts))
    shown = list(missing)[:SHOWN_MAX]
    await job.say(*(f"  {one}  NOT DONE: {missing[one]}" for one in shown))
    if len(missing) > SHOWN_MAX:
        await job.say(f"  ... and {len(missing) - SHOWN_MAX:,} more")
    await job.say_errors(job.errors, words=(*job.words, *(shown or ["-"])))
    return int(is_failure)
