"""Looking into a queue: what waits, is in flight or deferred, the log, its tail, a search.

1. Nothing is taken: nodes are asked to show (`sparq.nsqadmin.messages`).
2. Bodies are shown only to readers with that right, and nobody else may search in them: what a
   search finds tells of what it looked for.
3. Lists stand still while somebody chooses among them; the tail alone is live.
"""

from __future__ import annotations

from typing import Any, Final

from sparq.daemon.http import HttpError
from sparq.nsqadmin.messages.asking import Answers, Refused
from sparq.nsqadmin.messages.one import find
from sparq.nsqadmin.messages.peek import (
    MessagePage,
    SearchPage,
    Show,
    Sought,
    log_page,
    peek,
    search,
)
from sparq.nsqadmin.pages import bodies
from sparq.nsqadmin.pages.look import Look, View
from sparq.nsqadmin.pages.refusals import in_words

STATES: Final = {"waiting": "Waiting", "in_flight": "In flight", "deferred": "Deferred"}
TABS: Final = {**STATES, "log": "Log", "tail": "Tail", "search": "Search"}
LIST_BODY_BYTES: Final = 2048
PAGE_BODY_BYTES: Final = 1 << 20
LIMIT: Final = 50
LIMIT_MAX: Final = 200
TAIL: Final = 100
TAIL_SEARCHED: Final = 5000
CHANNELS_MAX: Final = 20
TOPICS_MAX: Final = 1000
SOUGHT: Final = ("since", "until", "text", "regex", "json", "attempts", "state")


async def messages(look: Look) -> View:
    """Messages of a topic, or of one of its channels."""
    topic, channel = look.query.get("topic", ""), look.query.get("channel", "")
    show = look.query.get("show", "") or ("waiting" if channel else "log")
    if show not in TABS or (show in STATES and not channel):
        show = "log"
    facts: dict[str, Any] = {
        "topic": topic,
        "channel": channel,
        "show": show,
        "topics": [key[0] for key in look.picture.topics.keys[:TOPICS_MAX]],
        "channels": _channels(look, topic),
        "tabs": _tabs(look, channel, show) if topic else [],
        "sought": {name: look.query.get(name, "") for name in SOUGHT},
        "from": look.query.get("from", ""),
        "is_paused": look.query.get("paused") == "1",
        "trouble": "",
        "page": None,
        **look.rights,
    }
    if topic:
        try:
            facts |= await _found(look, topic, channel, show)
        except Refused as refused:
            facts["trouble"] = trouble(refused)
    is_live = show == "tail" and bool(topic) and not facts["is_paused"]
    title = f"Messages of {topic}" if topic else "Messages"
    return View("messages.html", title, facts, is_live=is_live)


async def _found(look: Look, topic: str, channel: str, show: str) -> dict[str, Any]:
    after = look.query.get("after", "")
    if show == "search":
        return await _searched(look, topic, channel, after)
    if show == "tail":
        return await _tail(look, topic, channel)
    how = _show(look, look.number("limit", LIMIT, 1, LIMIT_MAX))
    fleet = look.desk.fleet
    if show in STATES:
        page = await peek(fleet, topic, channel, state=show, after=after, show=how)
    else:
        place = look.query.get("from", "") or "last:50"
        page = await log_page(fleet, topic, place=place, channel=channel, after=after, show=how)
    return {
        "page": page,
        "next": look.here(after=page.next) if page.next and page.messages else "",
        "first": look.here(after="") if after else "",
        "warnings": warnings(page.answers),
    }


async def _tail(look: Look, topic: str, channel: str) -> dict[str, Any]:
    """The newest messages, the latest first; with a text only those that have it."""
    text = look.query.get("text", "")
    page: MessagePage | SearchPage
    if text:
        _check_may_search(look, Sought(text=text))
        sought = Sought(since=f"last:{TAIL_SEARCHED}", text=text, channel=channel)
        page = await search(look.desk.fleet, topic, sought, show=_show(look, TAIL))
    else:
        how = _show(look, TAIL)
        place = f"last:{TAIL}"
        page = await log_page(look.desk.fleet, topic, place=place, channel=channel, show=how)
    page.messages = page.messages[::-1][:TAIL]
    row = look.picture.topic(topic)
    return {
        "page": page,
        "rate": row.in_rate if row else None,
        "warnings": warnings(page.answers),
        "next": "",
        "first": "",
        "pause": look.here(paused="" if look.query.get("paused") else "1"),
    }


async def _searched(look: Look, topic: str, channel: str, after: str) -> dict[str, Any]:
    """A step of a search; nothing before somebody has asked for something."""
    if not look.query.get("go"):
        return {}
    sought = Sought(**{name: look.query.get(name, "") for name in SOUGHT}, channel=channel)
    _check_may_search(look, sought)
    page = await search(look.desk.fleet, topic, sought, after=after, show=_show(look, LIMIT))
    return {
        "page": page,
        "next": look.here(after=page.next) if page.next else "",
        "first": "",
        "warnings": warnings(page.answers),
        "is_step": bool(after),
    }


def _check_may_search(look: Look, sought: Sought) -> None:
    if (sought.text or sought.regex or sought.json) and not look.rights["may_read"]:
        raise Refused("FORBIDDEN: searching in bodies needs the role bodies", 403)


def _show(look: Look, limit: int) -> Show:
    return Show(limit=limit, bodies=look.rights["may_read"], body_bytes=LIST_BODY_BYTES)


def _tabs(look: Look, channel: str, show: str) -> list[tuple[str, str, bool]]:
    kept = {"topic": look.query.get("topic", ""), "channel": channel}
    return [
        (label, look.link("/messages", **kept, show=name), name == show)
        for name, label in TABS.items()
        if channel or name not in STATES
    ]


def _channels(look: Look, topic: str) -> list[str]:
    """The channels of a topic, by name."""
    keys = look.picture.channels.keys
    return [key[1] for key in keys if key[0] == topic][:TOPICS_MAX]


async def message(look: Look) -> View:
    """One message: what it says, and what each channel knows of it."""
    topic, wanted = look.query.get("topic", ""), look.query.get("id", "")
    show = Show(bodies=look.rights["may_read"], body_bytes=PAGE_BODY_BYTES, nodes=_node(look))
    facts: dict[str, Any] = {"topic": topic, "id": wanted, **look.rights}
    try:
        found, answers = await find(look.desk.fleet, topic, wanted, "", show)
    except Refused as refused:
        raise HttpError(refused.status, refused.code) from None
    facts |= {
        "found": [(one, bodies.whole(one)) for one in found],
        "warnings": warnings(answers),
        "states": await _states(look, topic, wanted),
        "topics": [key[0] for key in look.picture.topics.keys[:TOPICS_MAX]],
    }
    return View("message.html", f"Message {wanted}", facts, is_live=False)


async def _states(look: Look, topic: str, wanted: str) -> list[tuple[str, dict[str, Any]]]:
    """What each channel knows of a message: (channel, the message as it is there)."""
    how = Show(bodies=False, nodes=_node(look))
    states = []
    for channel in _channels(look, topic)[:CHANNELS_MAX]:
        try:
            found, _ = await find(look.desk.fleet, topic, wanted, channel, how)
        except Refused:
            continue  # this node does not have the channel
        states += [(channel, one) for one in found]
    return states


def trouble(refused: Refused) -> str:
    """Why there is nothing to show, in words."""
    _, sentence, hint = in_words(refused.status, refused.code)
    return f"{sentence} {hint}".strip()


def _node(look: Look) -> tuple[str, ...]:
    node = look.query.get("node", "")
    return (node,) if node else ()


def warnings(answers: Answers) -> list[str]:
    """Which nodes could not tell, in words."""
    said = [f"{node} did not answer: {why}." for node, why in answers.errors.items()]
    if answers.unable:
        nodes = ", ".join(answers.unable)
        said.append(f"{nodes}: Go's nsqd cannot be looked into; its messages are not shown.")
    return said
