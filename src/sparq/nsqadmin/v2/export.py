"""Lists and messages as CSV or JSON lines, streamed: memory stays what it is for a page.

1. What is exported is what the same filter shows: figures of one picture, messages page by page.
2. Text that a spreadsheet would take for a formula (it begins with `=`, `+`, `-`, `@`, a tab or a
   line end) has an apostrophe before it in CSV.
3. What could not be had of some nodes is told in a last line: `incomplete`.
4. An export has `ROWS_MAX` messages at most; its last line tells that there are more.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from sparq.daemon.http import Call, HttpError
from sparq.nsqadmin.access import Role
from sparq.nsqadmin.desk import Desk
from sparq.nsqadmin.messages import peek as peeking
from sparq.nsqadmin.messages.asking import Answers
from sparq.nsqadmin.messages.peek import STATES, Message, Show
from sparq.nsqadmin.v2.figures import FILTER, STATE
from sparq.nsqadmin.v2.looking import NODES, SOUGHT, refusing, sought_in
from sparq.nsqadmin.v2.schemas import plain
from sparq.nsqadmin.v2.table import Arguments, Endpoint, Parameter
from sparq.nsqadmin.watch import paging, rows
from sparq.nsqadmin.watch.table import Table

FORMATS: Final = {
    "csv": ("text/csv; charset=utf-8", "csv"),
    "jsonl": ("application/x-ndjson; charset=utf-8", "jsonl"),
}
FIGURES: Final = ("channels", "topics", "nodes", "clients")
MESSAGES: Final = ("messages", "log", "search")
ROWS_MAX: Final = 1_000_000
PAGE_ROWS: Final = 200
BODY_BYTES_MAX: Final = 1 << 20
RISKY: Final = ("=", "+", "-", "@", "\t", "\r", "\n")

MESSAGE_COLUMNS: Final = (
    *("node", "id", "index", "time", "attempts", "size", "state", "due", "since", "deadline"),
    *("client", "encoding", "cut", "body"),
)

Line = dict[str, Any]
Chunk = tuple[Sequence[Line], dict[str, str]]
"""Some lines, and what could not be had, by address."""


@dataclass(frozen=True, slots=True)
class Export:
    """The handlers."""

    desk: Desk

    def endpoints(self) -> list[Endpoint]:
        """The routes."""
        what = Parameter(
            "what", "what is exported", choices=(*FIGURES, *MESSAGES), default="channels"
        )
        form = Parameter("format", "CSV or JSON lines", choices=(*FORMATS,), default="csv")
        sort = Parameter("sort", "of figures, as in lists", default="")
        waiting = Parameter(
            "message_state",
            "of `messages` and `search`; by default those that wait, and any",
            choices=("", *STATES, "finished"),
        )
        most = Parameter("max", "messages", "integer", default=10_000, minimum=1, maximum=ROWS_MAX)
        sought = tuple(each for each in SOUGHT if each.name not in ("topic", "state"))
        topic = Parameter("topic", "of messages: the topic; of figures: only this one")
        parameters = (what, form, sort, FILTER, STATE, topic, *sought, waiting, NODES, most)
        return [
            Endpoint(
                "GET",
                "/export",
                "figures or messages as a file",
                None,
                self.export,
                parameters,
                media=("text/csv", "application/x-ndjson"),
            )
        ]

    async def export(self, call: Call, asked: Arguments) -> Any:
        """`GET /export`."""
        what, (kind, suffix) = asked["what"], FORMATS[asked["format"]]
        columns = MESSAGE_COLUMNS if what in MESSAGES else _columns(what)
        chunks = self._chunks(call, asked)
        first = await anext(chunks)  # what is refused is refused before anything is sent
        name = f'attachment; filename="nsqadmin-{what}.{suffix}"'
        headers = {"Content-Disposition": name, "Cache-Control": "no-store"}
        response = await call.stream(kind, headers)
        lines = csv_lines if suffix == "csv" else json_lines
        missing = dict(first[1])
        await response.write(lines(columns, first[0], head=True))
        async for some, errors in chunks:
            missing |= errors
            await response.write(lines(columns, some))
        if missing:
            await response.write(incomplete(suffix, missing))
        return response

    def _chunks(self, call: Call, asked: Arguments) -> AsyncIterator[Chunk]:
        if asked["what"] in FIGURES:
            return self._figures(asked)
        if not asked["topic"]:
            raise HttpError(400, "MISSING_ARG_TOPIC")
        if asked["what"] == "search":
            self.desk.access.require(call.request, Role.BODIES)
        bodies = self.desk.access.identify(call.request).may(Role.BODIES)
        return self._messages(asked, Show(PAGE_ROWS, bodies, BODY_BYTES_MAX, asked["nodes"]))

    async def _figures(self, asked: Arguments) -> AsyncIterator[Chunk]:
        watch = self.desk.watch
        picture = await watch.look()
        if asked["what"] in ("nodes", "clients"):
            found = await self._few(asked)
            for at in range(0, max(1, len(found)), PAGE_ROWS):
                yield [plain(row) for row in found[at : at + PAGE_ROWS]], {}
            return
        table: Table[Any] = picture.topics if asked["what"] == "topics" else picture.channels
        wanted = {name: asked[name] for name in ("filter", "topic", "state")}
        try:
            places = paging.in_order(table, sort=asked["sort"] or paging.BY_NAME, **wanted)
        except ValueError as error:
            raise HttpError(400, f"INVALID_ARGUMENT: {error}") from None
        for at in range(0, max(1, len(places)), PAGE_ROWS):
            yield [plain(table.row(place)) for place in places[at : at + PAGE_ROWS]], {}
            await asyncio.sleep(0)  # others are answered in between

    async def _few(self, asked: Arguments) -> list[Any]:
        """Nodes or groups of clients, all of them."""
        watch = self.desk.watch
        found: list[Any] = []
        for offset in range(0, ROWS_MAX, paging.LIMIT_MAX):
            page: paging.Page[Any]
            wanted = {"filter": asked["filter"], "offset": offset, "limit": paging.LIMIT_MAX}
            sort = {"sort": asked["sort"]} if asked["sort"] else {}
            try:
                if asked["what"] == "nodes":
                    page = paging.page_of_nodes((await watch.look()).nodes, **wanted, **sort)
                else:
                    clients = (await watch.clients()).clients
                    page = paging.page_of_clients(clients, **wanted, **sort)
            except ValueError as error:
                raise HttpError(400, f"INVALID_ARGUMENT: {error}") from None
            found += page.rows
            if offset + len(page.rows) >= page.total or not page.rows:
                break
        return found

    async def _messages(self, asked: Arguments, show: Show) -> AsyncIterator[Chunk]:
        after: str | None = ""
        left, end = asked["max"], ""
        while after is not None:
            messages, following, answers = await refusing(self._some(asked, after, show))
            yield [_line(message) for message in messages[:left]], _missing(answers)
            left -= len(messages)
            is_end = asked["what"] == "log" and not messages
            if left <= 0 or is_end or _is_stuck(messages, after, following):
                end = "more" if left <= 0 and following is not None else ""
                break
            after = following
        if end:
            yield [], {"max": f"there are more than {asked['max']:,} messages"}

    async def _some(
        self, asked: Arguments, after: str, show: Show
    ) -> tuple[list[Message], str | None, Answers]:
        fleet, topic = self.desk.fleet, asked["topic"]
        if asked["what"] == "search":
            sought = sought_in({**asked, "state": asked["message_state"]})
            found = await peeking.search(fleet, topic, sought, after=after, show=show)
            return found.messages, found.next, found.answers
        if asked["what"] == "log":
            place, channel = asked["from"], asked["channel"]
            page = await peeking.log_page(
                fleet, topic, place=place, channel=channel, after=after, show=show
            )
        else:
            state = asked["message_state"] or "waiting"
            page = await peeking.peek(
                fleet, topic, asked["channel"], state=state, after=after, show=show
            )
        return page.messages, page.next, page.answers


def _columns(what: str) -> tuple[str, ...]:
    kinds = {
        "channels": rows.Channel,
        "topics": rows.Topic,
        "nodes": rows.Node,
        "clients": rows.ClientGroup,
    }
    return tuple(each.name for each in fields(kinds[what]))


def _line(message: Message) -> Line:
    client = message.get("client")
    named = client.get("client_id", "") if isinstance(client, dict) else ""
    return {**message, "client": named} if "client" in message else message


def _missing(answers: Answers) -> dict[str, str]:
    unable = dict.fromkeys(answers.unable, "it is no sparq nsqd: it does not show messages")
    return {**answers.errors, **unable}


def _is_stuck(messages: list[Message], after: str, following: str | None) -> bool:
    """Whether a page brought nothing: its nodes do not answer."""
    return not messages and following == after


def csv_lines(columns: Sequence[str], lines: Iterable[Line], head: bool = False) -> bytes:
    """Lines of CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    if head:
        writer.writerow(columns)
    for line in lines:
        writer.writerow([harmless(line.get(column)) for column in columns])
    return text.getvalue().encode("utf-8", "replace")


def harmless(value: Any) -> Any:
    """A cell that no spreadsheet computes (rule 2)."""
    if isinstance(value, list | dict):
        value = ", ".join(map(str, value)) if isinstance(value, list) else json.dumps(value)
    if isinstance(value, str) and value.startswith(RISKY):
        return f"'{value}"
    return value


def json_lines(_columns: Sequence[str], lines: Iterable[Line], head: bool = False) -> bytes:
    """JSON lines; they have no head."""
    found = (json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in lines)
    return "".join(f"{line}\n" for line in found).encode("utf-8", "replace")


def incomplete(suffix: str, missing: dict[str, str]) -> bytes:
    """The last line of an export that is not whole."""
    if suffix == "jsonl":
        return json_lines((), [{"incomplete": missing}])
    told = "; ".join(f"{address}: {why}" for address, why in sorted(missing.items()))
    return csv_lines(("what", "why"), [{"what": "incomplete", "why": told}])
