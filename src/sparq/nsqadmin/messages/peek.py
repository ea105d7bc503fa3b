"""Messages over all nodes of a topic: pages by time of a channel, a log or a search, and one by id.

1. Nothing is consumed: nodes only show messages (docs/http.md, "Looking into a queue").
2. A page is merged from one page of each node, so the nodes' own limits also limit memory here.
3. A message is the node's own object plus `node`, the node's address: two nodes may have the same
   id.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sparq.cluster.cluster_stats import number
from sparq.cluster.fleet import Fleet, UnknownNode
from sparq.cluster.nodes import Node
from sparq.cluster.upstream import UpstreamError
from sparq.nsqadmin.messages.asking import Answers, Refused, get_object, nodes_of, query_all
from sparq.nsqadmin.messages.checked import STATES, checked
from sparq.nsqadmin.messages.places import ListPosition, Order, Places, places_in, token_of
from sparq.nsqadmin.messages.times import ns_of

LIMIT: Final = 50
LIMIT_MAX: Final = 1000
SHOWN_BYTES: Final = 64 << 10
SHOWN_BYTES_MAX: Final = 1 << 20
"""The largest part of a body that an nsqd shows."""

ID: Final = re.compile(r"[0-9a-f]{16}")
BUDGET_MS: Final = 100
EMPTY_PAGES_MAX: Final = 3
"""Pages of one node without new messages, after which its list is left to the next request."""

Message = dict[str, Any]


@dataclass(slots=True)
class MessagePage:
    """A page of messages, ordered by time.

    Attributes:
        messages: as nodes show them, each with `node`.
        next: token of the next page; None if there is none.
        total: number of messages in all; None if unknown.
        answers: which nodes could not answer, and why.
        reach: by node, `first_index` and `end_index` of its log; only for log pages.
        older_are_gone: whether the requested place is before a log's oldest message.
    """

    messages: list[Message]
    next: str | None
    total: int | None
    answers: Answers
    reach: dict[str, dict[str, str]] = field(default_factory=dict)
    older_are_gone: bool = False


@dataclass(slots=True)
class SearchPage:
    """The result of one step of a search.

    Attributes:
        progress: the part of the range that has been searched, from 0 to 1.
        scanned, scanned_bytes: messages and bytes searched in this step.
        unsearched: messages that were too large to search.
        next: token that continues the search; None if it is complete.
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
        """Whether the whole range has been searched."""
        return self.next is None


@dataclass(frozen=True, slots=True)
class DisplayLimits:
    """How many messages to show, and how much of each.

    Attributes:
        limit: messages per page.
        bodies, body_bytes: whether to show bodies, and the maximum number of bytes of each.
        nodes: addresses of the nodes to show messages of; empty: all.
    """

    limit: int = LIMIT
    bodies: bool = True
    body_bytes: int = SHOWN_BYTES
    nodes: tuple[str, ...] = ()

    def query(self) -> dict[str, str]:
        """Query parameters for a node."""
        shown = {"body_bytes": str(self.body_bytes)} if self.bodies else {"bodies": "false"}
        return {"limit": str(self.limit), **shown}


async def peek(
    fleet: Fleet,
    topic: str,
    channel: str,
    *,
    state: str = "waiting",
    after: str = "",
    show: DisplayLimits | None = None,
) -> MessagePage:
    """Fetch a page of a channel's messages that wait, are in flight or are deferred.

    Raises:
        Refused: the topic or channel does not exist, or an argument is wrong.
    """
    if state not in STATES:
        raise Refused(f"INVALID_ARG_STATE: use {', '.join(STATES)}")
    show = show or DisplayLimits()
    query = {"topic": topic, "channel": channel, "state": state, **show.query()}
    return await _page(fleet, "/channel/messages", query, after, show)


async def log_page(
    fleet: Fleet,
    topic: str,
    *,
    place: str = "",
    channel: str = "",
    after: str = "",
    show: DisplayLimits | None = None,
) -> MessagePage:
    """Fetch a page of the log from a place on; its `next` also finds messages published later.

    Args:
        place: every form that `/channel/seek` accepts; "": the oldest message.
        channel: adds the state that each message has in this channel; "": no state.
        after: the `next` of the previous page.
        show: how much to show.

    Raises:
        Refused: the topic or channel does not exist, or an argument is wrong.
    """
    show = show or DisplayLimits()
    query = {"topic": topic, "channel": channel, "from": place, **show.query()}
    page = await _page(fleet, "/topic/messages", query, after, show)
    for node, answer in page.answers.found.items():
        page.reach[node] = {name: answer.get(name) for name in ("first_index", "end_index")}
        page.older_are_gone |= answer.get("older_are_gone") is True
    return page


async def _page(
    fleet: Fleet, path: str, query: dict[str, str], after: str, show: DisplayLimits
) -> MessagePage:
    nodes, answers = await nodes_of(fleet, query["topic"], show.nodes)
    places = _places(after, nodes)
    wanted = {node: nodes[node] for node, place in places.items() if not place.is_done}
    lists: dict[str, list[Message]] = {}
    pages: dict[str, tuple[ListPosition, ListPosition]] = {}

    async def ask(node: Node) -> Any:
        place = places[node.address]
        # A page may have only messages that were shown already: then look at the next one.
        for _ in range(EMPTY_PAGES_MAX):
            answer = await get_object(fleet, node, path, **{**query, "after": place.after})
            messages = _new(node.address, answer, place)
            is_done, total = answer.get("next") is None, answer.get("total")
            following = ListPosition(
                _next(answer), is_done=is_done, total=total if is_done else None
            )
            pages[node.address], lists[node.address] = (place, following), messages
            if messages or following.is_done or not answer.get("messages"):
                break
            place = following
        return answer

    await query_all(wanted, answers, ask)
    is_whole = {node for node, (_, following) in pages.items() if following.is_done}
    is_whole |= {node for node, answer in answers.found.items() if _is_at_end(answer)}
    shown = _first(lists, is_whole, show.limit)
    rest = {node: places[node] for node in places if node not in pages}
    rest |= dict.fromkeys(
        (*answers.unable, *answers.absent), ListPosition(is_done=True, progress=1.0)
    )
    for node, (place, following) in pages.items():
        rest[node] = _rest(lists[node], shown, node, place, following)
    return MessagePage(shown, token_of(rest), _total(rest, answers), answers)


def _total(places: Places, answers: Answers) -> int | None:
    """Number of messages in all; a node that was shown to its end counts with its last total."""
    totals = [answer.get("total") for answer in answers.found.values()]
    totals += [place.total for node, place in places.items() if node not in answers.found]
    known = [total for total in totals if isinstance(total, int)]
    return sum(known) if known else None


def _places(after: str, nodes: dict[str, Node]) -> Places:
    """Where each node's list continues; nodes of the token that are not in `nodes` are left out."""
    if not after:
        return dict.fromkeys(nodes, ListPosition())
    try:
        return {node: place for node, place in places_in(after).items() if node in nodes}
    except ValueError:
        raise Refused("INVALID_ARG_AFTER") from None


def _next(answer: dict[str, Any]) -> str:
    found = answer.get("next")
    return found if isinstance(found, str) else ""


def _is_at_end(answer: Any) -> bool:
    """Whether a log page has the log's newest message; later messages are newer than this page."""
    messages, end = answer.get("messages"), answer.get("end_index")
    if not messages or not isinstance(end, str) or not re.fullmatch(r"[0-9]{1,20}", end):
        return not messages
    return int(messages[-1]["index"]) >= int(end) - 1


def _new(node: str, answer: Any, place: ListPosition) -> list[Message]:
    """The messages of a node's page that have not been shown yet."""
    listed = answer.get("messages")
    messages = [checked(message) for message in (listed if isinstance(listed, list) else ())]
    return [
        {**message, "node": node}
        for message in messages
        if place.last is None or _order(message) > place.last
    ]


def _order(message: Message) -> Order:
    # Not the timestamp, as in `_time`: all messages of a commit have the same one, so it could not
    # tell which of them were shown.
    return _due_ns(message), int(message["index"])


def _due_ns(message: Message) -> int:
    return ns_of(message["due"]) if message.get("due") else 0


def _first(lists: dict[str, list[Message]], is_whole: set[str], limit: int) -> list[Message]:
    """Merge the first messages of all lists, each of which keeps its order.

    The merge ends where the page of a node with further messages ends: that node's next message may
    be older than the remaining ones of other nodes. `is_whole` has the nodes without further
    messages.
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
    # Not the index, as in `_order`: it belongs to one node's log, and this compares nodes.
    return _due_ns(message), int(message["timestamp"])


def _rest(
    messages: list[Message],
    shown: list[Message],
    node: str,
    place: ListPosition,
    following: ListPosition,
) -> ListPosition:
    """Where a node's list continues after some messages of its page were shown."""
    count = sum(message["node"] == node for message in shown)
    if count == len(messages):
        return following
    if not count:
        return place
    # nsqd's tokens exist only between pages. So the next request fetches this page again, and
    # `_new` skips what was shown.
    return ListPosition(place.after, _order(messages[count - 1]))


@dataclass(frozen=True, slots=True)
class SearchCriteria:
    """Criteria of a search, all of which must match; "": no condition (docs/http.md, "Search")."""

    since: str = ""
    until: str = ""
    text: str = ""
    json: str = ""
    attempts: str = ""
    state: str = ""
    channel: str = ""
    regex: str = ""

    def query(self) -> dict[str, str]:
        """Query parameters for a node."""
        found = asdict(self)
        return {"from": found.pop("since"), "to": found.pop("until"), **found}


async def search(
    fleet: Fleet,
    topic: str,
    sought: SearchCriteria,
    *,
    after: str = "",
    show: DisplayLimits | None = None,
    budget_ms: int = BUDGET_MS,
) -> SearchPage:
    """Run one step of a search at all nodes at once; `next` continues it.

    `show.limit` is divided among the nodes that are not done, at least 1 each, so a step may find
    somewhat more messages.

    Raises:
        Refused: the topic or channel does not exist, or an argument is wrong.
    """
    show = show or DisplayLimits()
    nodes, answers = await nodes_of(fleet, topic, show.nodes)
    places = _places(after, nodes)
    wanted = {node: nodes[node] for node, place in places.items() if not place.is_done}
    query = {"topic": topic, **sought.query(), **show.query(), "budget_ms": str(budget_ms)}
    query["limit"] = str(math.ceil(show.limit / max(1, len(wanted))))

    lists: dict[str, list[Message]] = {}

    async def ask(node: Node) -> Any:
        after = places[node.address].after
        answer = await get_object(fleet, node, "/topic/search", **{**query, "after": after})
        lists[node.address] = _new(node.address, answer, ListPosition())
        return answer

    await query_all(wanted, answers, ask)
    messages = []
    for node in wanted:
        answer = answers.found.get(node)
        if answer is None:  # the node failed: its messages are left out of the search
            places[node] = ListPosition(is_done=True, progress=1.0)
            continue
        messages += lists[node]
        progress = answer.get("progress")
        is_part = isinstance(progress, int | float) and 0 <= progress <= 1
        part = float(progress) if is_part else 0.0
        is_done = answer.get("done") is True or answer.get("next") is None
        places[node] = ListPosition(
            _next(answer), progress=1.0 if is_done else part, is_done=is_done
        )
    parts = [place.progress for place in places.values()]
    received = answers.found.values()
    return SearchPage(
        sorted(messages, key=_time),
        token_of(places),
        sum(parts) / len(parts) if parts else 1.0,
        sum(number(answer, "scanned") for answer in received),
        sum(number(answer, "scanned_bytes") for answer in received),
        sum(number(answer, "unsearched") for answer in received),
        answers,
    )


async def find(
    fleet: Fleet, topic: str, message_id: str, channel: str = "", show: DisplayLimits | None = None
) -> tuple[list[Message], Answers]:
    """Find the messages with an id: one, or more if several nodes have the same node id.

    Raises:
        Refused: no node has the message; the code says how far back the logs reach.
    """
    _check_id(message_id)
    show = show or DisplayLimits()
    nodes, answers = await nodes_of(fleet, topic, show.nodes)
    query = {"topic": topic, "channel": channel, "id": message_id, **show.query()}
    del query["limit"]

    async def ask(node: Node) -> Any:
        return checked(await get_object(fleet, node, "/message", **query))

    await query_all(nodes, answers, ask)
    return [{**one, "node": node} for node, one in answers.found.items()], answers


async def whole_body(fleet: Fleet, topic: str, message_id: str, node: str) -> bytes:
    """Fetch the whole body of a message.

    Raises:
        Refused: the message or node does not exist, or the node did not answer.
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
        raise Refused("INVALID_ARG_ID: use 16 hexadecimal digits")


def by_node(chosen: Iterable[Any]) -> dict[str, list[str]]:
    """Group `{"node", "id"}` objects or `node/id` texts into ids by node, for `actions.perform`.

    Raises:
        ValueError: an entry is neither.
    """
    found: dict[str, list[str]] = {}
    for each in chosen:
        node, message_id = _parts(each)
        if not isinstance(node, str) or not node or not isinstance(message_id, str):
            raise ValueError("name each message by node and id: NODE/ID")
        if not ID.fullmatch(message_id):
            raise ValueError("a message id has 16 hexadecimal digits")
        found.setdefault(node, []).append(message_id)
    return found


def _parts(named: Any) -> tuple[Any, Any]:
    if isinstance(named, str):
        node, _, message_id = named.rpartition("/")
        return node, message_id
    return (named.get("node"), named.get("id")) if isinstance(named, dict) else (None, None)
