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

from sparq.daemon.http import HttpError
from sparq.nsqadmin import words
from sparq.nsqadmin.dead_letters import origin
from sparq.nsqadmin.messages import (
    SHOWN_BYTES_MAX,
    DisplayLimits,
    MessagePage,
    Missing,
    SearchCriteria,
    SearchPage,
    find,
    log_page,
    peek,
    search,
    seek_preview,
    times,
)
from sparq.nsqadmin.pages.charts import Line, chart
from sparq.nsqadmin.pages.rendering import PageRequest, PageView
from sparq.options.units import SECOND
from sparq.protocol.dead_letters import REDRIVE_CHANNEL
from sparq.protocol.messages import ns_of

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
    topic, channel = request["topic"], request["channel"]
    show = request["show"] or ("waiting" if channel else "log")
    if show not in TABS or (show in STATES and not channel):
        show = "log"
    limit = request.number("limit", LIMIT, 1, LIMIT_MAX)
    kept, is_paused = {"topic": topic, "channel": channel}, request["paused"] == "1"
    facts: dict[str, Any] = {
        "show": show,
        **_names(request),
        "tabs": [
            (label, request.link("/messages", **kept, show=name), name == show)
            for name, label in TABS.items()
            if channel or name not in STATES
        ],
        "sought": {name: request[name] for name in SOUGHT},
        "from": request["from"],
        "is_paused": is_paused,
        "trouble": "",
        "page": None,
        "next": "",
        "first": "",
    }
    try:
        # Nothing is searched until the form is submitted.
        if topic and (show != "search" or request["go"]):
            facts |= await _found(request, show, limit)
    except HttpError as refused:
        facts["trouble"] = _trouble(refused)
    is_live = show == "tail" and bool(topic) and not is_paused
    title = f"Messages of {topic}" if topic else "Messages"
    return PageView("messages.html", title, facts, is_live=is_live)


async def _found(request: PageRequest, show: str, limit: int) -> dict[str, Any]:
    """The messages that a tab shows; the latest come first in the tail."""
    topic, channel, after = request["topic"], request["channel"], request["after"]
    sought = SearchCriteria(**{name: request[name] for name in SOUGHT}, channel=channel)
    place, is_search = request["from"] or "last:50", show == "search"
    if is_search:
        limit = LIMIT
    elif show == "tail":
        after, place, limit = "", f"last:{TAIL}", TAIL
        sought = SearchCriteria(
            since=f"last:{TAIL_SEARCHED}", text=request["text"], channel=channel
        )
    of: dict[str, Any] = {"after": after, "show": _limits(request, limit)}
    page: MessagePage | SearchPage
    if is_search or (show == "tail" and sought.text):
        if (sought.text or sought.regex or sought.json) and not request.rights["may_read"]:
            raise HttpError(403, "FORBIDDEN: Searching bodies requires the role bodies.")
        page = await search(request.services.fleet, topic, sought, **of)
    elif show in STATES:
        page = await peek(request.services.fleet, topic, channel, state=show, **of)
    else:
        page = await log_page(request.services.fleet, topic, place=place, channel=channel, **of)
    found = {"page": page, "warnings": _warnings(page), "is_step": bool(after)}
    if show == "tail":
        page.messages = page.messages[::-1][:TAIL]
        row = request.snapshot.topics.find(topic)
        pause = request.here(paused="" if request["paused"] else "1")
        return {**found, "rate": row.in_rate if row else None, "pause": pause}
    has_next = page.next and (is_search or page.messages)
    return {
        **found,
        "next": request.here(after=page.next) if has_next else "",
        "first": request.here(after="") if after and not is_search else "",
    }


def _limits(request: PageRequest, limit: int) -> DisplayLimits:
    return DisplayLimits(limit=limit, bodies=request.rights["may_read"], body_bytes=LIST_BYTES)


def _names(request: PageRequest) -> dict[str, list[str]]:
    """The names of topics and of the topic's channels, for fields with suggestions."""
    snapshot, topic = request.snapshot, request["topic"]
    channels = [key[1] for key in snapshot.channels.keys if key[0] == topic]
    topics = [key[0] for key in snapshot.topics.keys[:TOPICS_MAX]]
    return {"topics": topics, "channels": channels[:TOPICS_MAX]}


async def message(request: PageRequest) -> PageView:
    """One message: its body, and its state in each channel."""
    topic, wanted, fleet = request["topic"], request["id"], request.services.fleet
    nodes = tuple(filter(None, [request["node"]]))
    limits = DisplayLimits(
        bodies=request.rights["may_read"], body_bytes=SHOWN_BYTES_MAX, nodes=nodes
    )
    found = await find(fleet, topic, wanted, "", limits)
    states, names = [], _names(request)
    for channel in names["channels"][:CHANNELS_MAX]:
        limits = DisplayLimits(bodies=False, nodes=nodes)
        try:
            there = await find(fleet, topic, wanted, channel, limits)
        except HttpError:
            continue  # this node does not have the channel
        states += [(channel, one) for one in there.messages]
    facts: dict[str, Any] = {
        "id": wanted,
        "found": [(one, words.body_of(one)) for one in found.messages],
        "warnings": _warnings(found),
        "states": states,
        **names,
    }
    return PageView("message.html", f"Message {wanted}", facts, is_live=False)


def _trouble(refused: HttpError) -> str:
    """A text that explains why there is nothing to show."""
    _, sentence, hint = words.in_words(refused.status, refused.code)
    return f"{sentence} {hint}".strip()


def _warnings(answers: Missing) -> list[str]:
    """Texts about the nodes that could not answer."""
    warnings = [f"{node} did not answer: {why}." for node, why in answers.errors.items()]
    if answers.unable:
        nodes = ", ".join(answers.unable)
        warnings.append(f"{nodes}: NSQ's Go nsqd does not show messages.")
    return warnings


async def dead_letters(request: PageRequest) -> PageView:
    """All dead-letter topics, and the messages of one of them."""
    topic, after, topics = request["topic"], request["after"], request.snapshot.topics
    facts: dict[str, Any] = {
        "rows": [(row, origin(row.topic)) for row in topics if origin(row.topic)],
        "channel": "",
        "made_channel": REDRIVE_CHANNEL,
        **_names(request),
        "page": None,
        "trouble": "",
    }
    try:
        if topic:
            limits = _limits(request, LIMIT)
            page = await request.services.letters.page(
                topic, place=request["from"], after=after, show=limits
            )
            is_full = page.next and len(page.messages) == LIMIT
            facts |= {
                "page": page,
                "marks": page.marks,
                "next": request.here(after=page.next) if is_full else "",
                "first": request.here(after="") if after else "",
                "warnings": _warnings(page),
            }
    except HttpError as refused:
        facts["trouble"] = _trouble(refused)
    return PageView("dead_letters.html", "Dead letters", facts, is_live=False)


async def replay(request: PageRequest) -> PageView:
    """The replay page of a channel.

    Raises:
        HttpError: the topic or channel is missing or does not exist, or its nodes are Go's.
    """
    topic, channel, to, node = (request[name] for name in ("topic", "channel", "to", "node"))
    if not topic or not channel:
        raise HttpError(400, "A replay needs a topic and a channel: start from a channel's page.")
    fleet, trouble, preview = request.services.fleet, "", None
    found = await times(fleet, topic, channel)
    try:
        if to:
            preview = await seek_preview(fleet, topic, channel, to, [node] if node else [])
    except HttpError as refused:
        trouble = refused.code
    begins = [ns_of(bucket.time) for bucket in found.buckets]
    counts = [bucket.count for bucket in found.buckets]
    title = "Messages by the time they were published"
    seconds, lines = [begin / SECOND for begin in begins], [Line("messages", counts)]
    # The channel continues where it is furthest behind; without a node that says so, at the end.
    behind = min(map(ns_of, found.cursors.values()), default=begins[-1] if begins else 0)
    facts = {
        "to": to,
        "node": node,
        "nodes": [each.address for each, _ in request.snapshot.channel_nodes(topic, channel)],
        "preview": preview,
        "skipped": words.skipped(preview.skipped) if preview else "",
        "trouble": trouble,
        "chart": chart("times", title, seconds, lines, bars=True) if begins else None,
        "begin": found.begin or "",
        "total": sum(counts),
        "place": max(0, sum(begin <= behind for begin in begins) - 1),
        "warnings": _warnings(found),
        "row": request.snapshot.channels.find(topic, channel),
    }
    return PageView("replay.html", f"Replay {topic}/{channel}", facts, is_live=False)
