"""Messages over the API: pages of a channel and of the log, search, one message, replay.

1. Bodies are shown to the role `bodies` alone. Without it the same routes show the rest of each
   message; a search for text would tell bodies, so it is refused (`access.rights`).
2. A search streams events while it goes on (`stream=true`), or answers with one bounded step and a
   token. Whoever goes away ends it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sparq.daemon.http import Call, Content, HttpError
from sparq.nsqadmin.access import Role
from sparq.nsqadmin.desk import Desk
from sparq.nsqadmin.messages import peek as peeking
from sparq.nsqadmin.messages.asking import Answers, Refused
from sparq.nsqadmin.messages.one import find, whole_body
from sparq.nsqadmin.messages.peek import STATES, MessagePage, SearchPage, Show, Sought
from sparq.nsqadmin.messages.replay import seek_preview
from sparq.nsqadmin.messages.times import BUCKETS, BUCKETS_MAX, times
from sparq.nsqadmin.v2.table import Arguments, Endpoint, Parameter

T = TypeVar("T")

BODY_BYTES_MAX: Final = 1 << 20

TOPIC: Final = Parameter("topic", "the topic", is_needed=True)
CHANNEL: Final = Parameter("channel", "the channel", is_needed=True)
ANY_CHANNEL: Final = Parameter("channel", "says of each message what state it has in this channel")
NODES: Final = Parameter("nodes", "only these nodes, with commas", "list", default=())
SHOWN: Final = (
    Parameter(
        "limit",
        "messages",
        "integer",
        default=peeking.LIMIT,
        minimum=1,
        maximum=peeking.LIMIT_MAX,
    ),
    Parameter("bodies", "with bodies; by default if the role allows it", "flag", default=None),
    Parameter(
        "body_bytes",
        "bytes of each body",
        "integer",
        default=peeking.BODY_BYTES,
        minimum=1,
        maximum=BODY_BYTES_MAX,
    ),
    NODES,
)
AFTER: Final = Parameter("after", "the `next` of the answer before")
SOUGHT: Final = (
    TOPIC,
    ANY_CHANNEL,
    Parameter("from", "a place: messages from there on"),
    Parameter("to", "a place: messages before it"),
    Parameter("text", "bodies with this text"),
    Parameter("regex", "bodies in which this pattern (RE2) is found"),
    Parameter("json", "`PATH` or `PATH OPERATOR VALUE`, as in docs/http.md"),
    Parameter("attempts", "with `channel`: a number, or `>=3`, `<3`, ..."),
    Parameter("state", "with `channel`: the state", choices=("", *STATES, "finished")),
)


@dataclass(frozen=True, slots=True)
class Looking:
    """The handlers."""

    desk: Desk

    def endpoints(self) -> list[Endpoint]:
        """The routes."""
        return [*self._pages(), *self._single(), *self._times()]

    def _pages(self) -> list[Endpoint]:
        state = Parameter("state", "which messages", default="waiting", choices=STATES)
        place = Parameter("from", "a place; without it the oldest message")
        stream = Parameter("stream", "as events, until all was searched", "flag", default=False)
        channel = (TOPIC, CHANNEL, state, *SHOWN, AFTER)
        log = (TOPIC, ANY_CHANNEL, place, *SHOWN, AFTER)
        search = (*SOUGHT, *SHOWN, AFTER, stream)
        peeks = "a channel's messages by time; nothing is taken"
        logs = "a topic's log by time, also what comes after the `next` of the last page"
        finds = "messages that match: one step, or events until the end"
        events = ("text/event-stream",)
        return [
            Endpoint("GET", "/messages", peeks, "MessagePage", self.messages, channel),
            Endpoint("GET", "/log", logs, "MessagePage", self.log, log),
            Endpoint("GET", "/search", finds, "SearchPage", self.search, search, media=events),
        ]

    def _single(self) -> list[Endpoint]:
        one = (TOPIC, Parameter("id", "16 hexadecimal digits", is_needed=True))
        node = Parameter("node", "the node that has it", is_needed=True)
        words = "one message, at each node that has one of this id"
        shown = (*one, ANY_CHANNEL, *SHOWN[1:])
        bytes_ = ("application/octet-stream",)
        return [
            Endpoint("GET", "/message", words, "Messages", self.message, shown),
            Endpoint(
                "GET",
                "/body",
                "a message's whole body",
                None,
                self.body,
                (*one, node),
                media=bytes_,
            ),
        ]

    def _times(self) -> list[Endpoint]:
        buckets = Parameter(
            "buckets", "parts", "integer", default=BUCKETS, minimum=1, maximum=BUCKETS_MAX
        )
        of_channel = Parameter("channel", "where this channel stands, too")
        to = Parameter("to", "a place, as in docs/http.md, Replay", is_needed=True)
        times = (TOPIC, of_channel, buckets, NODES)
        seek = (TOPIC, CHANNEL, to, NODES)
        words = "how many messages were published when"
        dry = "what a seek would do; nothing is moved"
        return [
            Endpoint("GET", "/times", words, "Times", self.times, times),
            Endpoint("GET", "/seek", dry, "Preview", self.preview, seek),
        ]

    def show(self, call: Call, asked: Arguments) -> Show:
        """How much is shown to whoever asks.

        Raises:
            HttpError: 403, bodies are wanted and the role is missing.
        """
        bodies = asked["bodies"]
        if bodies:
            self.desk.access.require(call.request, Role.BODIES)
        elif bodies is None:
            bodies = self.desk.access.identify(call.request).may(Role.BODIES)
        return Show(asked.get("limit", 1), bodies, asked["body_bytes"], asked["nodes"])

    async def messages(self, call: Call, asked: Arguments) -> Any:
        """`GET /messages`."""
        page = await refusing(
            peeking.peek(
                self.desk.fleet,
                asked["topic"],
                asked["channel"],
                state=asked["state"],
                after=asked["after"],
                show=self.show(call, asked),
            )
        )
        return page_document(page)

    async def log(self, call: Call, asked: Arguments) -> Any:
        """`GET /log`."""
        page = await refusing(
            peeking.log_page(
                self.desk.fleet,
                asked["topic"],
                place=asked["from"],
                channel=asked["channel"],
                after=asked["after"],
                show=self.show(call, asked),
            )
        )
        return page_document(page)

    async def search(self, call: Call, asked: Arguments) -> Any:
        """`GET /search`."""
        fleet, topic, sought = self.desk.fleet, asked["topic"], sought_in(asked)
        after, show = asked["after"], self.show(call, asked)
        first = await refusing(peeking.search(fleet, topic, sought, after=after, show=show))
        if not asked["stream"]:
            return search_document(first)
        response = await call.stream("text/event-stream", {"Cache-Control": "no-store"})
        page, found = first, 0
        while True:
            found += len(page.messages)
            await response.write(event("step", search_document(page)))
            if page.next is None or found >= show.limit:
                break
            page = await peeking.search(fleet, topic, sought, after=page.next, show=show)
        await response.write(event("end", {"next": page.next, "done": page.done}))
        return response

    async def message(self, call: Call, asked: Arguments) -> Any:
        """`GET /message`."""
        show = self.show(call, asked)
        found = find(self.desk.fleet, asked["topic"], asked["id"], asked["channel"], show)
        messages, answers = await refusing(found)
        return {"messages": messages, **answers_document(answers)}

    async def body(self, _call: Call, asked: Arguments) -> Any:
        """`GET /body`; browsers save it, they do not show it."""
        fleet = self.desk.fleet
        body = await refusing(whole_body(fleet, asked["topic"], asked["id"], asked["node"]))
        return Content(body, "application/octet-stream")

    async def times(self, _call: Call, asked: Arguments) -> Any:
        """`GET /times`."""
        fleet, topic, channel = self.desk.fleet, asked["topic"], asked["channel"]
        found = await refusing(
            times(fleet, topic, channel, buckets=asked["buckets"], nodes=asked["nodes"])
        )
        return {**found.document(), **answers_document(found.answers)}

    async def preview(self, _call: Call, asked: Arguments) -> Any:
        """`GET /seek`."""
        fleet, topic, channel = self.desk.fleet, asked["topic"], asked["channel"]
        found = await refusing(seek_preview(fleet, topic, channel, asked["to"], asked["nodes"]))
        return {**found.document(), **answers_document(found.answers)}


async def refusing(work: Awaitable[T]) -> T:
    """What comes of something; what it refuses becomes an HTTP answer.

    Raises:
        HttpError: it was refused.
    """
    try:
        return await work
    except Refused as refused:
        raise HttpError(refused.status, refused.code) from None


def sought_in(asked: Arguments) -> Sought:
    """What is looked for, of a query."""
    names = ("text", "regex", "json", "attempts", "state", "channel")
    return Sought(asked["from"], asked["to"], **{name: asked[name] for name in names})


def answers_document(answers: Answers) -> dict[str, Any]:
    """Who could not tell, and why."""
    return {"errors": answers.errors, "unable": answers.unable, "absent": answers.absent}


def page_document(page: MessagePage) -> dict[str, Any]:
    """A page as JSON has it."""
    return {
        "messages": page.messages,
        "next": page.next,
        "total": page.total,
        "older_are_gone": page.older_are_gone,
        "reach": page.reach,
        **answers_document(page.answers),
    }


def search_document(page: SearchPage) -> dict[str, Any]:
    """A step of a search as JSON has it."""
    return {
        "messages": page.messages,
        "next": page.next,
        "done": page.done,
        "progress": page.progress,
        "scanned": page.scanned,
        "scanned_bytes": page.scanned_bytes,
        "unsearched": page.unsearched,
        **answers_document(page.answers),
    }


def event(name: str, told: Any) -> bytes:
    """A server-sent event; JSON has no line ends of its own."""
    return f"event: {name}\ndata: {json.dumps(told, separators=(',', ':'))}\n\n".encode()
