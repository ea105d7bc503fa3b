"""Pages with the messages of a queue: waiting, log, tail, search, dead letters; and its replay.

1. Nothing is consumed: nodes only show messages (`sparq.nsqadmin.messages`).
2. Only users with the right to read bodies see them and may search in them, because the matches of
   a search reveal what bodies contain.
3. Lists are not updated while a user selects messages in them; only the tail is live.
4. A dead-letter topic is recognised by its name: `orders.dead` belongs to `orders`.
5. Before a channel is moved, its replay page shows the effect: how many messages would be delivered
   again or skipped at each node, how many would wait then, and whether older ones are gone.
6. Dead letters go back to the channel that they came from, and to no other. A copy, which reaches
   every channel of its topic, has no default topic.
"""

from __future__ import annotations

from typing import Any, Final

from sparq.cluster.messages import ns_of
from sparq.daemon.http import HttpError
from sparq.nsqadmin.dead_letters import origin
from sparq.nsqadmin.messages import (
    BUCKETS,
    SHOWN_BYTES_MAX,
    DisplayLimits,
    MessagePage,
    Missing,
    Preview,
    Refused,
    SearchCriteria,
    SearchPage,
    Times,
    find,
    log_page,
    peek,
    search,
    seek_preview,
    times,
)
from sparq.nsqadmin.pages import words
from sparq.nsqadmin.pages.charts import Chart, Line, chart
from sparq.nsqadmin.pages.forms import skipped_text
from sparq.nsqadmin.pages.page_request import PageRequest, PageView
from sparq.options.units import SECOND
from sparq.protocol.dead_letters import REDRIVE_CHANNEL

STATES: Final = {"waiting": "Waiting", "in_flight": "In flight", "deferred": "Deferred"}
TABS: Final = {**STATES, "log": "Log", "tail": "Tail", "search": "Search"}
LIST_BYTES: Final = 2048
LIMIT: Final = 50
LIMIT_MAX: Final = 200
TAIL: Final = 100
TAIL_SEARCHED: Final = 5000
CHANNELS_MAX: Final = 20
TOPICS_MAX: Final = 1000
SOUGHT: Final = ("since", "until", "text", "regex", "json", "attempts", "state")


async def messages(request: PageRequest) -> PageView:
    """The messages of a topic, or of one of its channels."""
    topic, channel = request.query.get("topic", ""), request.query.get("channel", "")
    show = request.query.get("show", "") or ("waiting" if channel else "log")
    if show not in TABS or (show in STATES and not channel):
        show = "log"
    facts: dict[str, Any] = {
        "topic": topic,
        "channel": channel,
        "show": show,
        "topics": _topics(request),
        "channels": _channels(request, topic),
        "tabs": _tabs(request, channel, show) if topic else [],
        "sought": {name: request.query.get(name, "") for name in SOUGHT},
        "from": request.query.get("from", ""),
        "is_paused": request.query.get("paused") == "1",
        "trouble": "",
        "page": None,
        **request.rights,
    }
    if topic:
        try:
            facts |= await _found(request, topic, channel, show)
        except Refused as refused:
            facts["trouble"] = _trouble(refused)
    is_live = show == "tail" and bool(topic) and not facts["is_paused"]
    title = f"Messages of {topic}" if topic else "Messages"
    return PageView("messages.html", title, facts, is_live=is_live)


async def _found(request: PageRequest, topic: str, channel: str, show: str) -> dict[str, Any]:
    after = request.query.get("after", "")
    if show == "search":
        return await _searched(request, topic, channel, after)
    if show == "tail":
        return await _tail(request, topic, channel)
    limits = _limits(request, request.number("limit", LIMIT, 1, LIMIT_MAX))
    fleet = request.services.fleet
    if show in STATES:
        page = await peek(fleet, topic, channel, state=show, after=after, show=limits)
    else:
        place = request.query.get("from", "") or "last:50"
        page = await log_page(fleet, topic, place=place, channel=channel, after=after, show=limits)
    return {
        "page": page,
        "next": request.here(after=page.next) if page.next and page.messages else "",
        "first": request.here(after="") if after else "",
        "warnings": _warnings(page),
    }


async def _tail(request: PageRequest, topic: str, channel: str) -> dict[str, Any]:
    """The newest messages, the latest first; with a text only those that contain it."""
    text = request.query.get("text", "")
    page: MessagePage | SearchPage
    if text:
        _check_may_search(request, SearchCriteria(text=text))
        sought = SearchCriteria(since=f"last:{TAIL_SEARCHED}", text=text, channel=channel)
        page = await search(request.services.fleet, topic, sought, show=_limits(request, TAIL))
    else:
        limits = _limits(request, TAIL)
        place = f"last:{TAIL}"
        page = await log_page(
            request.services.fleet, topic, place=place, channel=channel, show=limits
        )
    page.messages = page.messages[::-1][:TAIL]
    row = request.snapshot.topics.find(topic)
    return {
        "page": page,
        "rate": row.in_rate if row else None,
        "warnings": _warnings(page),
        "next": "",
        "first": "",
        "pause": request.here(paused="" if request.query.get("paused") else "1"),
    }


async def _searched(request: PageRequest, topic: str, channel: str, after: str) -> dict[str, Any]:
    """One step of a search; empty until the search form is submitted."""
    if not request.query.get("go"):
        return {}
    sought = SearchCriteria(
        **{name: request.query.get(name, "") for name in SOUGHT}, channel=channel
    )
    _check_may_search(request, sought)
    page = await search(
        request.services.fleet, topic, sought, after=after, show=_limits(request, LIMIT)
    )
    return {
        "page": page,
        "next": request.here(after=page.next) if page.next else "",
        "first": "",
        "warnings": _warnings(page),
        "is_step": bool(after),
    }


def _check_may_search(request: PageRequest, sought: SearchCriteria) -> None:
    if (sought.text or sought.regex or sought.json) and not request.rights["may_read"]:
        raise Refused("FORBIDDEN: Searching bodies requires the role bodies.", 403)


def _limits(request: PageRequest, limit: int) -> DisplayLimits:
    return DisplayLimits(limit=limit, bodies=request.rights["may_read"], body_bytes=LIST_BYTES)


def _tabs(request: PageRequest, channel: str, show: str) -> list[tuple[str, str, bool]]:
    kept = {"topic": request.query.get("topic", ""), "channel": channel}
    return [
        (label, request.link("/messages", **kept, show=name), name == show)
        for name, label in TABS.items()
        if channel or name not in STATES
    ]


def _topics(request: PageRequest) -> list[str]:
    """The names of topics, for a field with suggestions."""
    return [key[0] for key in request.snapshot.topics.keys[:TOPICS_MAX]]


def _channels(request: PageRequest, topic: str) -> list[str]:
    """The names of a topic's channels."""
    keys = request.snapshot.channels.keys
    return [key[1] for key in keys if key[0] == topic][:TOPICS_MAX]


async def message(request: PageRequest) -> PageView:
    """One message: its body, and its state in each channel."""
    topic, wanted = request.query.get("topic", ""), request.query.get("id", "")
    show = DisplayLimits(
        bodies=request.rights["may_read"], body_bytes=SHOWN_BYTES_MAX, nodes=_node(request)
    )
    facts: dict[str, Any] = {"topic": topic, "id": wanted, **request.rights}
    found = await find(request.services.fleet, topic, wanted, "", show)
    facts |= {
        "found": [(one, words.body_of(one)) for one in found.messages],
        "warnings": _warnings(found),
        "states": await _states(request, topic, wanted),
        "topics": _topics(request),
    }
    return PageView("message.html", f"Message {wanted}", facts, is_live=False)


async def _states(
    request: PageRequest, topic: str, wanted: str
) -> list[tuple[str, dict[str, Any]]]:
    """The states of a message: (channel, the message with its state in that channel)."""
    limits = DisplayLimits(bodies=False, nodes=_node(request))
    states = []
    for channel in _channels(request, topic)[:CHANNELS_MAX]:
        try:
            found = await find(request.services.fleet, topic, wanted, channel, limits)
        except Refused:
            continue  # this node does not have the channel
        states += [(channel, one) for one in found.messages]
    return states


def _trouble(refused: Refused) -> str:
    """A text that explains why there is nothing to show."""
    _, sentence, hint = words.in_words(refused.status, refused.code)
    return f"{sentence} {hint}".strip()


def _node(request: PageRequest) -> tuple[str, ...]:
    node = request.query.get("node", "")
    return (node,) if node else ()


def _warnings(answers: Missing) -> list[str]:
    """Texts about the nodes that could not answer."""
    warnings = [f"{node} did not answer: {why}." for node, why in answers.errors.items()]
    if answers.unable:
        nodes = ", ".join(answers.unable)
        warnings.append(f"{nodes}: NSQ's Go nsqd does not show messages.")
    return warnings


async def dead_letters(request: PageRequest) -> PageView:
    """All dead-letter topics, and the messages of one of them."""
    topic = request.query.get("topic", "")
    snapshot = request.snapshot
    rows = [snapshot.topics.find(key[0]) for key in snapshot.topics.keys if origin(key[0])]
    facts: dict[str, Any] = {
        "rows": [(row, origin(row.topic)) for row in rows if row is not None],
        "topic": topic,
        "channel": "",
        "made_channel": REDRIVE_CHANNEL,
        "topics": _topics(request),
        "channels": _channels(request, topic),
        "page": None,
        "trouble": "",
        **request.rights,
    }
    if topic:
        try:
            facts |= await _letters(request, topic)
        except Refused as refused:
            facts["trouble"] = _trouble(refused)
    return PageView("dead_letters.html", "Dead letters", facts, is_live=False)


async def _letters(request: PageRequest, topic: str) -> dict[str, Any]:
    after, place = request.query.get("after", ""), request.query.get("from", "")
    show = _limits(request, LIMIT)
    page = await request.services.letters.page(topic, place=place, after=after, show=show)
    return {
        "page": page,
        "marks": page.marks,
        "next": request.here(after=page.next) if page.next and len(page.messages) == LIMIT else "",
        "first": request.here(after="") if after else "",
        "warnings": _warnings(page),
    }


async def replay(request: PageRequest) -> PageView:
    """The replay page of a channel.

    Raises:
        HttpError: the topic or channel is missing or does not exist, or its nodes are Go's.
    """
    topic, channel = request.query.get("topic", ""), request.query.get("channel", "")
    to, node = request.query.get("to", ""), request.query.get("node", "")
    if not topic or not channel:
        raise HttpError(400, "A replay needs a topic and a channel: start from a channel's page.")
    found = await times(request.services.fleet, topic, channel, buckets=BUCKETS)
    preview, trouble = await _preview(request, topic, channel, to, node) if to else (None, "")
    facts: dict[str, Any] = {
        "topic": topic,
        "channel": channel,
        "to": to,
        "node": node,
        "nodes": [each.address for each, _ in request.snapshot.channel_nodes(topic, channel)],
        "preview": preview,
        "skipped": skipped_text(preview.skipped) if preview else "",
        "trouble": trouble,
        "chart": _chart(found),
        "begin": found.begin or "",
        "total": sum(bucket.count for bucket in found.buckets),
        "place": _place(found),
        "warnings": _warnings(found),
        "row": request.snapshot.channels.find(topic, channel),
        **request.rights,
    }
    return PageView("replay.html", f"Replay {topic}/{channel}", facts, is_live=False)


async def _preview(
    request: PageRequest, topic: str, channel: str, to: str, node: str
) -> tuple[Preview | None, str]:
    try:
        nodes = [node] if node else []
        return await seek_preview(request.services.fleet, topic, channel, to, nodes), ""
    except Refused as refused:
        return None, refused.code


def _chart(found: Times) -> Chart | None:
    """Chart of messages by publish time; None if there are no messages."""
    if not found.buckets:
        return None
    begins = [ns_of(bucket.time) / SECOND for bucket in found.buckets]
    counts: list[float | None] = [float(bucket.count) for bucket in found.buckets]
    title = "Messages by the time they were published"
    return chart("times", title, begins, [Line("messages", counts)], bars=True)


def _place(found: Times) -> int:
    """The bucket where the channel continues, at the node where it is furthest behind."""
    last = len(found.buckets) - 1
    if found.cursors:
        behind = min(map(ns_of, found.cursors.values()))
        last = sum(ns_of(bucket.time) <= behind for bucket in found.buckets) - 1
    return max(0, last)
