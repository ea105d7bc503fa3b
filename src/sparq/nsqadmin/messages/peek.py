"""Messages over all nodes of a topic: pages by time, of a channel, the log or a search; and one.

1. Nothing is taken: nodes are only asked to show (docs/http.md, "Looking into a queue").
2. A page is merged of one page of each node, so that memory is bounded by the nodes' own bounds.
3. A message is the node's own object, with `node`, the node's address: ids of two nodes may be the
   same.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sparq.cluster.figures import number
from sparq.cluster.fleet import Fleet, UnknownNode
from sparq.cluster.nodes import Node
from sparq.cluster.upstream import UpstreamError
from sparq.nsqadmin.messages.asking import Answers, Refused, ask_all, nodes_of
from sparq.nsqadmin.messages.places import Order, Place, Places, places_in, token_of
from sparq.nsqadmin.messages.times import ns_of

LIMIT: Final = 50
LIMIT_MAX: Final = 1000
BODY_BYTES: Final = 64 << 10
ID: Final = re.compile(r"[0-9a-f]{16}")
STATES: Final = ("waiting", "in_flight", "deferred")
BUDGET_MS: Final = 100
EMPTY_PAGES_MAX: Final = 3
"""Pages of a node that may hold nothing new before its list is left for the next request."""

Message = dict[str, Any]


@dataclass(slots=True)
class MessagePage:
    """Some messages, by time.

    Attributes:
        messages: as nodes show them, each with `node`.
        next: the token of the page that follows; None: there is none.
        total: how many there are in all; None: not known.
        answers: which nodes could not tell, and why.
        reach: by node, `first_index` and `end_index` of its log; of log pages only.
        older_are_gone: the place asked for lies before a log's oldest message.
    """

    messages: list[Message]
    next: str | None
    total: int | None
    answers: Answers
    reach: dict[str, dict[str, str]] = field(default_factory=dict)
    older_are_gone: bool = False


@dataclass(slots=True)
class SearchPage:
    """What a step of a search has found.

    Attributes:
        progress: the part of the range that was looked at, from 0 to 1.
        scanned, scanned_bytes: messages and bytes looked at in this step.
        unsearched: messages that were too large to be looked at.
        next: goes on; None: all was looked at.
    """

    messages: list[Message]
    next: str | None
    progress: float
    scanned: int
    scanned_bytes: int
    unsearched: int
    answers: Answers

    @property
    def done(self) -> bool:
        """Whether all was looked at."""
        return self.next is None


@dataclass(frozen=True, slots=True)
class Show:
    """How much of messages is shown.

    Attributes:
        limit: messages of a page.
        bodies: whether with bodies, and how many bytes of each.
        nodes: only of these; empty: of all.
    """

    limit: int = LIMIT
    bodies: bool = True
    body_bytes: int = BODY_BYTES
    nodes: tuple[str, ...] = ()

    def query(self) -> dict[str, str]:
        """The parameters for a node."""
        shown = {"body_bytes": str(self.body_bytes)} if self.bodies else {"bodies": "false"}
        return {"limit": str(self.limit), **shown}


async def peek(
    fleet: Fleet,
    topic: str,
    channel: str,
    *,
    state: str = "waiting",
    after: str = "",
    show: Show | None = None,
) -> MessagePage:
    """A page of a channel's messages that wait, are in flight or are deferred.

    Raises:
        Refused: there is no such topic or channel, or the question is wrong.
    """
    if state not in STATES:
        raise Refused(f"INVALID_ARG_STATE: use {', '.join(STATES)}")
    show = show or Show()
    query = {"topic": topic, "channel": channel, "state": state, **show.query()}
    return await _page(fleet, "/channel/messages", query, after, show)


async def log_page(
    fleet: Fleet,
    topic: str,
    *,
    place: str = "",
    channel: str = "",
    after: str = "",
    show: Show | None = None,
) -> MessagePage:
    """A page of the log from a place on; its `next` also tells what comes later.

    Args:
        place: every form that `/channel/seek` takes; "": the oldest message.
        channel: says what state each message has there; "": none.
        after: the `next` of the page before.
        show: how much is shown.

    Raises:
        Refused: there is no such topic or channel, or the question is wrong.
    """
    show = show or Show()
    query = {"topic": topic, "channel": channel, "from": place, **show.query()}
    page = await _page(fleet, "/topic/messages", query, after, show)
    for node, answer in page.answers.found.items():
        page.reach[node] = {name: answer.get(name) for name in ("first_index", "end_index")}
        page.older_are_gone |= answer.get("older_are_gone") is True
    return page


async def _page(
    fleet: Fleet, path: str, query: dict[str, str], after: str, show: Show
) -> MessagePage:
    nodes, answers = await nodes_of(fleet, query["topic"], show.nodes)
    places = _places(after, nodes)
    wanted = {node: nodes[node] for node, place in places.items() if not place.is_done}
    lists: dict[str, list[Message]] = {}
    pages: dict[str, tuple[Place, Place]] = {}

    async def ask(node: Node) -> Any:
        place = places[node.address]
        for _ in range(EMPTY_PAGES_MAX):
            answer = await fleet.get(node, path, **{**query, "after": place.after})
            messages = _new(node.address, answer, place)
            is_done, total = answer.get("next") is None, answer.get("total")
            following = Place(_next(answer), is_done=is_done, total=total if is_done else None)
            pages[node.address], lists[node.address] = (place, following), messages
            if messages or following.is_done or not answer.get("messages"):
                break
            place = following
        return answer

    await ask_all(wanted, answers, ask)
    is_whole = {node for node, (_, following) in pages.items() if following.is_done}
    is_whole |= {node for node, answer in answers.found.items() if _is_at_end(answer)}
    shown = _first(lists, is_whole, show.limit)
    rest = {node: places[node] for node in places if node not in pages}
    rest |= dict.fromkeys((*answers.unable, *answers.absent), Place(is_done=True, progress=1.0))
    for node, (place, following) in pages.items():
        rest[node] = _rest(lists[node], shown, node, place, following)
    return MessagePage(shown, token_of(rest), _total(rest, answers), answers)


def _total(places: Places, answers: Answers) -> int | None:
    """How many messages there are, at nodes that were shown to their end as they said it then."""
    said = [answer.get("total") for answer in answers.found.values()]
    said += [place.total for node, place in places.items() if node not in answers.found]
    known = [total for total in said if isinstance(total, int)]
    return sum(known) if known else None


def _places(after: str, nodes: dict[str, Node]) -> Places:
    """Where each node's list goes on; nodes of a token that are none here are left out."""
    if not after:
        return dict.fromkeys(nodes, Place())
    try:
        return {node: place for node, place in places_in(after).items() if node in nodes}
    except ValueError:
        raise Refused("INVALID_ARG_AFTER") from None


def _next(answer: dict[str, Any]) -> str:
    found = answer.get("next")
    return found if isinstance(found, str) else ""


def _is_at_end(answer: Any) -> bool:
    """Whether a page of the log has its newest message; more may come later, and be newer."""
    messages, end = answer.get("messages"), answer.get("end_index")
    if not messages or not isinstance(end, str) or not end.isdigit():
        return not messages
    return int(messages[-1]["index"]) >= int(end) - 1


def _new(node: str, answer: Any, place: Place) -> list[Message]:
    """The messages of a node's page that were not shown."""
    listed = answer.get("messages") if isinstance(answer, dict) else None
    return [
        {**message, "node": node}
        for message in (listed if isinstance(listed, list) else ())
        if isinstance(message, dict) and (place.last is None or _order(message) > place.last)
    ]


def _order(message: Message) -> Order:
    return _due_ns(message), int(message["index"])


def _due_ns(message: Message) -> int:
    return ns_of(message["due"]) if message.get("due") else 0


def _first(lists: dict[str, list[Message]], is_whole: set[str], limit: int) -> list[Message]:
    """The first messages of all lists, each of which keeps its order.

    Where the page of a node ends that has further messages, all end: the next one may be older than
    what others have left. `is_whole` are the nodes that have no further ones.
    """
    left = {node: len(messages) for node, messages in lists.items()}
    shown = []
    for message in heapq.merge(*lists.values(), key=_time):
        shown.append(message)
        left[message["node"]] -= 1
        is_end = not left[message["node"]] and message["node"] not in is_whole
        if is_end or len(shown) == limit:
            break
    return shown


def _time(message: Message) -> tuple[int, int]:
    return _due_ns(message), int(message["timestamp"])


def _rest(
    messages: list[Message], shown: list[Message], node: str, place: Place, following: Place
) -> Place:
    """Where a node goes on, of whose page some messages were shown."""
    count = sum(message["node"] == node for message in shown)
    if count == len(messages):
        return following
    if not count:
        return place
    return Place(place.after, _order(messages[count - 1]))


@dataclass(frozen=True, slots=True)
class Sought:
    """What is looked for; "": anything. All that is given must hold (docs/http.md, "Search")."""

    since: str = ""
    until: str = ""
    text: str = ""
    json: str = ""
    attempts: str = ""
    state: str = ""
    channel: str = ""
    regex: str = ""

    def query(self) -> dict[str, str]:
        """The parameters for a node."""
        found = asdict(self)
        return {"from": found.pop("since"), "to": found.pop("until"), **found}


async def search(
    fleet: Fleet,
    topic: str,
    sought: Sought,
    *,
    after: str = "",
    show: Show | None = None,
    budget_ms: int = BUDGET_MS,
) -> SearchPage:
    """One step of a search at all nodes at once; `next` goes on.

    A step may find somewhat more messages than `show.limit`: each node that is not done one.

    Raises:
        Refused: there is no such topic or channel, or the question is wrong.
    """
    show = show or Show()
    nodes, answers = await nodes_of(fleet, topic, show.nodes)
    places = _places(after, nodes)
    wanted = {node: nodes[node] for node, place in places.items() if not place.is_done}
    query = {"topic": topic, **sought.query(), **show.query(), "budget_ms": str(budget_ms)}
    query["limit"] = str(math.ceil(show.limit / max(1, len(wanted))))

    async def ask(node: Node) -> Any:
        after = places[node.address].after
        return await fleet.get(node, "/topic/search", **{**query, "after": after})

    await ask_all(wanted, answers, ask)
    messages = []
    for node in wanted:
        answer = answers.found.get(node)
        if answer is None:  # it cannot tell: what it has is not part of the search
            places[node] = Place(is_done=True, progress=1.0)
            continue
        messages += _new(node, answer, Place())
        progress = answer.get("progress")
        part = float(progress) if isinstance(progress, int | float) else 0.0
        is_done = answer.get("done") is True or answer.get("next") is None
        places[node] = Place(_next(answer), progress=1.0 if is_done else part, is_done=is_done)
    parts = [place.progress for place in places.values()]
    said = answers.found.values()
    return SearchPage(
        sorted(messages, key=_time),
        token_of(places),
        sum(parts) / len(parts) if parts else 1.0,
        sum(number(answer, "scanned") for answer in said),
        sum(number(answer, "scanned_bytes") for answer in said),
        sum(number(answer, "unsearched") for answer in said),
        answers,
    )


async def find(
    fleet: Fleet, topic: str, message_id: str, channel: str = "", show: Show | None = None
) -> tuple[list[Message], Answers]:
    """The messages with an id: one, or more where nodes have the same node id.

    Raises:
        Refused: there is none; the code says from when the logs reach back.
    """
    _check_id(message_id)
    show = show or Show()
    nodes, answers = await nodes_of(fleet, topic, show.nodes)
    query = {"topic": topic, "channel": channel, "id": message_id, **show.query()}
    del query["limit"]
    await ask_all(nodes, answers, lambda node: fleet.get(node, "/message", **query))
    found = answers.found.items()
    return [{**said, "node": node} for node, said in found if isinstance(said, dict)], answers


async def whole_body(fleet: Fleet, topic: str, message_id: str, node: str) -> bytes:
    """A message's body, all of it.

    Raises:
        Refused: there is no such message or node.
    """
    _check_id(message_id)
    try:
        at = (await fleet.node(node)).at
        return await fleet.upstream.read(at, "/message", topic=topic, id=message_id, raw="true")
    except UnknownNode:
        raise Refused("NODE_NOT_FOUND", 404) from None
    except UpstreamError as error:
        status = error.status if error.status in (400, 404) else 502
        raise Refused(error.code or f"UPSTREAM_ERROR: {error}", status) from None


def _check_id(message_id: str) -> None:
    if not ID.fullmatch(message_id):
        raise Refused("INVALID_ARG_ID: an id has 16 hexadecimal digits")


def by_node(chosen: Iterable[Any]) -> dict[str, list[str]]:
    """Ids by node, of `{"node", "id"}` objects or `node/id` texts; for `actions.perform`.

    Raises:
        ValueError: one is neither.
    """
    found: dict[str, list[str]] = {}
    for each in chosen:
        node, message_id = _parts(each)
        if not isinstance(node, str) or not node or not isinstance(message_id, str):
            raise ValueError("a message is named by its node and its id")
        if not ID.fullmatch(message_id):
            raise ValueError("an id has 16 hexadecimal digits")
        found.setdefault(node, []).append(message_id)
    return found


def _parts(named: Any) -> tuple[Any, Any]:
    if isinstance(named, str):
        node, _, message_id = named.rpartition("/")
        return node, message_id
    return (named.get("node"), named.get("id")) if isinstance(named, dict) else (None, None)
