"""The messages of a topic over all of its nodes: pages of a channel, a log or a search, and one.

1. Nothing is consumed: nodes only show messages (docs/http.md, "Looking into a queue").
2. Nodes' answers are checked before any of it is used. A node that fails, or sends an answer of
   another form, is reported, and the messages of all other nodes are shown. Go's nsqd serves none
   of these routes: it is listed in `unable`, and pages explain this instead of showing an error.
3. A page is merged from one page of each node, so the nodes' own limits also limit memory here.
4. A message is the node's own object plus `node`, the node's address: two nodes may have the same
   id.
5. A page's token comes from an earlier answer and is not trusted when the client sends it back: of
   the nodes in it, only those that have the topic now are queried, and its size is limited. For
   each node it has `after`, the node's own token of the page being shown, and `last`, the last
   message of that page that was shown. The page is fetched again, and the messages up to `last` are
   skipped. So messages that have left the list since then neither hide nor repeat others.
"""

from __future__ import annotations

import asyncio
import base64
import heapq
import math
import re
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct, structs

from sparq.cluster.figures import Amount, SeekResult
from sparq.cluster.fleet import Fleet, Node, UnknownNode, checked_answer
from sparq.cluster.messages import Message, NodePage, node_message, node_page
from sparq.cluster.upstream import NO_ROUTE, UpstreamError
from sparq.daemon.http import HttpError
from sparq.protocol.instant import rfc3339
from sparq.protocol.messages import ns_of

LIMIT: Final = 50
LIMIT_MAX: Final = 1000
SHOWN_BYTES: Final = 64 << 10
SHOWN_BYTES_MAX: Final = 1 << 20
"""The largest part of a body that an nsqd shows."""

BUDGET_MS: Final = 100
EMPTY_PAGES_MAX: Final = 3
"""Pages of one node without new messages, after which its list is left to the next request."""

TOKEN_MAX: Final = 64 << 10
JSON_MAX: Final = 256 << 10
NOT_THERE: Final = ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND", "MESSAGE_NOT_FOUND")
ID: Final = re.compile(r"[0-9a-f]{16}")
SEARCH: Final = "/topic/search"
STATES: Final = ("waiting", "in_flight", "deferred")

T = TypeVar("T")


class Missing(Struct, kw_only=True, forbid_unknown_fields=True):
    """Part of answers that come from nodes: which could not answer, and why.

    Attributes:
        errors: by address, why a node did not answer.
        unable: addresses of Go nsqds, which do not have the route.
        absent: by address, the error code of a node without this topic, channel or message.
    """

    errors: dict[str, str] = {}
    unable: list[str] = []
    absent: dict[str, str] = {}


class TopicNodes(NamedTuple):
    """The nodes of a topic by address, and which of them could not answer a query."""

    nodes: dict[str, Node]
    missing: Missing

    async def query(
        self, ask: Callable[[Node], Awaitable[T]], only: Iterable[str] | None = None
    ) -> dict[str, T]:
        """Query all nodes at once, or those of `only`; return the answers by address.

        Raises:
            HttpError: a node rejects the query; or no node has a result: 404 if it does not exist,
                501 if nodes are Go's, 502 if they did not answer.
        """
        asked = [*self.nodes] if only is None else [*only]
        results = await asyncio.gather(
            *(ask(self.nodes[address]) for address in asked), return_exceptions=True
        )
        errors, unable, absent = structs.astuple(self.missing)
        found: dict[str, T] = {}
        wrong = ""
        for address, answer in zip(asked, results, strict=True):
            if not isinstance(answer, BaseException):
                found[address] = answer
            elif not isinstance(answer, UpstreamError):
                raise answer
            elif answer.status == 404 and answer.code == NO_ROUTE:
                unable.append(address)
            elif answer.status == 404 and answer.code.startswith(NOT_THERE):
                absent[address] = answer.code
            elif answer.status == 400:
                wrong = answer.code or "INVALID_REQUEST"
            else:
                errors[address] = answer.reason
        if wrong:
            raise HttpError(400, wrong)
        if asked and not found:
            if absent and not errors:
                raise HttpError(404, next(iter(absent.values())))
            if unable and not errors:
                raise HttpError(501, "NOT_SUPPORTED: all nodes of this topic are NSQ's Go nsqds")
            reasons = "; ".join(f"{address}: {why}" for address, why in errors.items())
            raise HttpError(502, f"UPSTREAM_ERROR: {reasons}")
        return found


async def nodes_of(fleet: Fleet, topic: str, only: Iterable[str] = ()) -> TopicNodes:
    """Find the nodes of a topic, all or those of `only` (addresses).

    Raises:
        HttpError: 404 NODE_NOT_FOUND, 404 TOPIC_NOT_FOUND, 502 UPSTREAM_ERROR.
    """
    found = await fleet.producers(topic)
    errors = {at: why for at, why in found.errors.items() if "TOPIC_NOT_FOUND" not in why}
    if found.failed and (errors or not found.errors):
        raise HttpError(502, f"UPSTREAM_ERROR: {found.failure}")
    nodes = {node.address: node for node in found.value}
    for address in () if found.failed else only:
        nodes.setdefault(address, await node_at(fleet, address))
    if not nodes:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    return TopicNodes({at: nodes[at] for at in only} or nodes, Missing(errors=errors))


async def node_at(fleet: Fleet, address: str) -> Node:
    """Return the node with this address. Raises HttpError: 404 NODE_NOT_FOUND."""
    try:
        return await fleet.node(address)
    except UnknownNode:
        raise HttpError(404, "NODE_NOT_FOUND") from None


# Pages

Order: TypeAlias = tuple[int, int]
"""Position of a message in its node's list: its due time in ns (0 in a log), then its index."""


class ListPosition(Struct, array_like=True, frozen=True):
    """Where one node's list continues.

    Attributes:
        after: the node's token of the page; "" for its first page.
        last: the last message of the page that was shown; None if none was.
        progress: of a search, from 0 to 1.
        is_done: whether the list has ended.
        total: number of messages in all; only if the list has ended.
    """

    after: Annotated[str, Meta(max_length=512)] = ""
    last: Order | None = None
    progress: Annotated[float, Meta(ge=0, le=1)] = 0.0
    is_done: bool = False
    total: int | None = None


DONE: Final = ListPosition(progress=1.0, is_done=True)
Places: TypeAlias = dict[str, ListPosition]


def token_of(places: Places) -> str | None:
    """Encode the places of all nodes as a token; None if all lists have ended."""
    if all(place.is_done for place in places.values()):
        return None
    packed = zlib.compress(msgspec.json.encode(places))
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def places_in(token: str) -> Places:
    """Decode a token. Raises ValueError: the text is no token."""
    try:
        packed = base64.urlsafe_b64decode(token[: TOKEN_MAX + 1] + "=" * (-len(token) % 4))
        # Not zlib.decompress: it has no limit, and a token may be forged. A text that is cut here
        # is no valid JSON.
        text = zlib.decompressobj().decompress(packed, JSON_MAX)
        return msgspec.json.decode(text, type=Places)
    except (ValueError, zlib.error, msgspec.MsgspecError, RecursionError):
        raise ValueError("use the `next` of an earlier answer") from None


Messages: TypeAlias = list[
    Annotated[Message, Meta(extra_json_schema={"$ref": "#/components/schemas/Message"})]
]


class MessagesFound(Missing):
    """Messages of nodes."""

    messages: Messages


class MessagePage(MessagesFound):
    """A page of messages, ordered by time.

    Attributes:
        next: token of the next page; None if there is none.
        total: number of messages in all; None if unknown.
        reach: by node, `first_index` and `end_index` of its log; only for log pages.
        older_are_gone: whether the requested place is before a log's oldest message.
    """

    next: str | None
    total: int | None
    older_are_gone: bool
    reach: dict[str, dict[str, str | None]]


class SearchPage(MessagesFound):
    """The result of one step of a search.

    Attributes:
        next: token that continues the search; None if it is complete.
        done: whether the whole range has been searched.
        progress: the part of the range that has been searched, from 0 to 1.
        scanned, scanned_bytes: messages and bytes searched in this step.
        unsearched: messages that were too large to search.
    """

    next: str | None
    done: bool
    progress: Annotated[float, Meta(ge=0, le=1)]
    scanned: Amount
    scanned_bytes: Amount
    unsearched: Amount


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
        """Query parameters for a node, without `limit`."""
        return {"body_bytes": str(self.body_bytes)} if self.bodies else {"bodies": "false"}


EVERYTHING: Final = DisplayLimits()


async def peek(
    fleet: Fleet,
    topic: str,
    channel: str,
    *,
    state: str = "waiting",
    after: str = "",
    show: DisplayLimits = EVERYTHING,
) -> MessagePage:
    """Fetch a page of a channel's messages that wait, are in flight or are deferred.

    Raises:
        HttpError: the topic or channel does not exist, or an argument is wrong.
    """
    if state not in STATES:
        raise HttpError(400, f"INVALID_ARG_STATE: use {', '.join(STATES)}")
    query = {"topic": topic, "channel": channel, "state": state}
    return await _page(fleet, "/channel/messages", query, after, show)


async def log_page(
    fleet: Fleet,
    topic: str,
    *,
    place: str = "",
    channel: str = "",
    after: str = "",
    show: DisplayLimits = EVERYTHING,
) -> MessagePage:
    """Fetch a page of the log from a place on; its `next` also finds messages published later.

    Args:
        place: every form that `/channel/seek` accepts; "": the oldest message.
        channel: adds the state that each message has in this channel; "": no state.
        after: the `next` of the previous page.
        show: how much to show.

    Raises:
        HttpError: the topic or channel does not exist, or an argument is wrong.
    """
    query = {"topic": topic, "channel": channel, "from": place}
    return await _page(fleet, "/topic/messages", query, after, show)


class NodeList(NamedTuple):
    """Of one node's list: where its page begins, where the next one does, the page, what is new."""

    begin: ListPosition
    following: ListPosition
    page: NodePage
    messages: list[Message]

    @property
    def is_whole(self) -> bool:
        """Whether no message of the node follows now, or only newer ones than this page has."""
        page = self.page
        if self.following.is_done or not page.messages or page.end_index is None:
            return self.following.is_done or not page.messages
        return int(page.messages[-1].index) >= int(page.end_index) - 1


class Lists(NamedTuple):
    """The lists of all nodes: where each continues, and the pages of those that answered."""

    places: Places
    lists: dict[str, NodeList]
    missing: Missing


async def _read(
    fleet: Fleet, path: str, query: dict[str, str], after: str, show: DisplayLimits
) -> Lists:
    """Fetch the next page of each node's list; `show.limit` is not sent if the query has one."""
    found = await nodes_of(fleet, query["topic"], show.nodes)
    places: Places = dict.fromkeys(found.nodes, ListPosition())
    if after:
        try:
            given = places_in(after)
        except ValueError:
            raise HttpError(400, "INVALID_ARG_AFTER") from None
        places = {node: place for node, place in given.items() if node in found.nodes}
    asked = [node for node, place in places.items() if not place.is_done]
    limit = show.limit
    if path == SEARCH:
        limit = math.ceil(limit / max(1, len(asked)))
    query = {**show.query(), "limit": str(limit), **query}

    async def ask(node: Node) -> NodeList:
        place = places[node.address]
        # A page may have only messages that were shown already: then look at the next one.
        for _ in range(EMPTY_PAGES_MAX):
            page, messages = await node_page(fleet, node, path, {**query, "after": place.after})
            new = [each for each in messages if place.last is None or _order(each) > place.last]
            following = ListPosition(page.next or "", progress=page.progress)
            if page.done or page.next is None:
                following = ListPosition(progress=1.0, is_done=True, total=page.total)
            read = NodeList(place, following, page, new)
            if new or following.is_done or not page.messages:
                break
            place = following
        return read

    return Lists(places, await found.query(ask, asked), found.missing)


async def _page(
    fleet: Fleet, path: str, query: dict[str, str], after: str, show: DisplayLimits
) -> MessagePage:
    places, lists, missing = await _read(fleet, path, query, after, show)
    chosen = _first(lists, show.limit)
    rest = places | dict.fromkeys((*missing.unable, *missing.absent), DONE)
    for node, found in lists.items():
        count = sum(each["node"] == node for each in chosen)
        rest[node] = found.following
        if count < len(found.messages):
            # nsqd's tokens exist only between pages. So if a part of this page was shown, the next
            # request fetches it again, and `_read` skips what was shown.
            last = _order(found.messages[count - 1]) if count else None
            rest[node] = ListPosition(found.begin.after, last) if count else found.begin
    totals = [found.page.total for found in lists.values()]
    totals += [place.total for node, place in rest.items() if node not in lists]
    known = [total for total in totals if total is not None]
    pages = {node: found.page for node, found in lists.items()}
    return MessagePage(
        messages=chosen,
        next=token_of(rest),
        total=sum(known) if known else None,
        reach={
            node: {"first_index": page.first_index, "end_index": page.end_index}
            for node, page in pages.items()
            if page.end_index is not None
        },
        older_are_gone=any(page.older_are_gone for page in pages.values()),
        **structs.asdict(missing),
    )


def _due_ns(message: Message) -> int:
    return ns_of(message["due"]) if message.get("due") else 0


def _order(message: Message) -> Order:
    # Not the timestamp, as in `_time`: all messages of a commit have the same one, so it could not
    # tell which of them were shown.
    return _due_ns(message), int(message["index"])


def _time(message: Message) -> tuple[int, int]:
    # Not the index, as in `_order`: it belongs to one node's log, and this compares nodes.
    return _due_ns(message), int(message["timestamp"])


def _first(lists: Mapping[str, NodeList], limit: int) -> list[Message]:
    """Merge the first messages of all lists, each of which keeps its order.

    The merge ends where the page of a node with further messages ends: that node's next message may
    be older than the remaining ones of other nodes.
    """
    left = {node: len(found.messages) for node, found in lists.items()}
    first = []
    for message in heapq.merge(*(found.messages for found in lists.values()), key=_time):
        first.append(message)
        node = message["node"]
        left[node] -= 1
        if len(first) == limit or (not left[node] and not lists[node].is_whole):
            break
    return first


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
    show: DisplayLimits = EVERYTHING,
    budget_ms: int = BUDGET_MS,
) -> SearchPage:
    """Run one step of a search at all nodes at once; `next` continues it.

    `show.limit` is divided among the nodes that are not done, at least 1 each, so a step may find
    somewhat more messages.

    Raises:
        HttpError: the topic or channel does not exist, or an argument is wrong.
    """
    query = {"topic": topic, **sought.query(), "budget_ms": str(budget_ms)}
    places, lists, missing = await _read(fleet, SEARCH, query, after, show)
    # A node that failed is left out of the rest of the search.
    rest = {
        node: lists[node].following if node in lists else place if place.is_done else DONE
        for node, place in places.items()
    }
    progress, token = [place.progress for place in rest.values()], token_of(rest)
    pages = [found.page for found in lists.values()]
    return SearchPage(
        messages=sorted((each for one in lists.values() for each in one.messages), key=_time),
        next=token,
        done=token is None,
        progress=sum(progress) / len(progress) if progress else 1.0,
        scanned=sum(page.scanned for page in pages),
        scanned_bytes=sum(page.scanned_bytes for page in pages),
        unsearched=sum(page.unsearched for page in pages),
        **structs.asdict(missing),
    )


async def find(
    fleet: Fleet,
    topic: str,
    message_id: str,
    channel: str = "",
    show: DisplayLimits = EVERYTHING,
) -> MessagesFound:
    """Find the messages with an id: one, or more if several nodes have the same node id.

    Raises:
        HttpError: no node has the message; the code says how far back the logs reach.
    """
    _check_id(message_id)
    found = await nodes_of(fleet, topic, show.nodes)
    query = {"topic": topic, "channel": channel, "id": message_id, **show.query()}
    messages = await found.query(lambda node: node_message(fleet, node, query))
    return MessagesFound(messages=[*messages.values()], **structs.asdict(found.missing))


async def whole_body(fleet: Fleet, topic: str, message_id: str, node: str) -> bytes:
    """Fetch the whole body of a message.

    Raises:
        HttpError: the message or node does not exist, or the node did not answer.
    """
    _check_id(message_id)
    at = (await node_at(fleet, node)).at
    try:
        return await fleet.upstream.read(at, "/message", topic=topic, id=message_id, raw="true")
    except UpstreamError as error:
        status = error.status if error.status in (400, 404) else 502
        raise HttpError(status, error.code or f"UPSTREAM_ERROR: {error}") from None


def _check_id(message_id: str) -> None:
    if not ID.fullmatch(message_id):
        raise HttpError(400, "INVALID_ARG_ID: use 16 hexadecimal digits")


# Times of publish, and seeks

BUCKETS: Final = 120
EPOCH: Final = "1970-01-01T00:00:00Z"
BUCKETS_MAX: Final = 1000


class Bucket(Struct):
    """Number of messages published from a time on."""

    time: str
    count: Amount

    def __post_init__(self) -> None:
        """Raises ValueError: `time` is no time."""
        ns_of(self.time)


class NodeTimes(Struct):
    """A node's answer to `/topic/times`."""

    buckets: list[Bucket]
    to: str | None = None
    cursor_time: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError: a text is no time, or times do not ascend."""
        ns_of(self.cursor_time or EPOCH)
        if self.edges != sorted(self.edges):
            raise ValueError("buckets do not ascend")

    @property
    def edges(self) -> list[int]:
        """Where each bucket begins, and where the last one ends; empty without buckets."""
        begins = [ns_of(bucket.time) for bucket in self.buckets]
        return [*begins, max(ns_of(self.to or ""), begins[-1] + 1)] if begins else []


class Times(Missing):
    """Numbers of messages by the time of their publish, over all nodes.

    Times have the nodes' format, RFC 3339 with nanoseconds. Each node counts messages in time spans
    of its own; the counts are spread over equal buckets for the whole cluster, so that a chart has
    one line. Indexes are left out: only a time is a place that all nodes have.

    Attributes:
        begin, to: range of the buckets; None if there are no messages.
        buckets: all have the same width.
        cursors: by node, publish time of the channel's next message.
    """

    begin: str | None = msgspec.field(name="from")
    to: str | None
    buckets: list[Bucket]
    cursors: dict[str, str]


async def times(
    fleet: Fleet,
    topic: str,
    channel: str = "",
    *,
    buckets: int = BUCKETS,
    nodes: Iterable[str] = (),
) -> Times:
    """Count the messages of a topic by publish time, as far back as the logs reach.

    Raises:
        HttpError: the topic or channel does not exist, or no node could answer.
    """
    found = await nodes_of(fleet, topic, nodes)
    query = {"topic": topic, "channel": channel, "buckets": str(buckets)}
    answers = await found.query(lambda node: fleet.read(node, "/topic/times", NodeTimes, **query))
    cursors = {node: one.cursor_time for node, one in answers.items() if one.cursor_time}
    counted = [
        (one.edges, [bucket.count for bucket in one.buckets])
        for one in answers.values()
        if one.buckets
    ]
    about = {"cursors": cursors, **structs.asdict(found.missing)}
    if not counted:
        return Times(begin=None, to=None, buckets=[], **about)
    begin = min(edges[0] for edges, _ in counted)
    end = max(begin + buckets, *(edges[-1] for edges, _ in counted))
    width = (end - begin) / buckets
    spread_counts = [
        Bucket(rfc3339(begin + round(at * width)), count)
        for at, count in enumerate(spread(counted, begin, end, buckets))
    ]
    return Times(begin=rfc3339(begin), to=rfc3339(end), buckets=spread_counts, **about)


def spread(
    counted: Iterable[tuple[Sequence[int], Sequence[int]]], begin: int, end: int, buckets: int
) -> list[int]:
    """Spread counts over equal buckets, as if the messages between two edges were evenly spaced.

    Rounding does not change the sum of the counts.

    Args:
        counted: of each node, the edges of its buckets, ascending, and the count of each bucket.
        begin, end: the range of the new buckets.
        buckets: their number.
    """
    at = np.linspace(0, end - begin, buckets + 1)
    before = np.zeros(buckets + 1)  # the number of messages published before each edge
    for edges, counts in counted:
        before += np.interp(at, np.subtract(edges, begin), np.cumsum([0, *counts]))
    # Round the running sum, not each bucket: otherwise the buckets' errors would add up.
    return [int(each) for each in np.diff(np.round(before))]


class Preview(Missing):
    """The effect that a seek would have.

    Attributes:
        again: messages that would be delivered again, over all nodes.
        waiting: messages that would wait after the seek.
        skipped: unfinished messages, deferred ones included, that would not be delivered any more.
        older_are_gone: whether some node no longer has messages as old as requested.
        nodes: each node's own answer (docs/http.md, "Replay"), with the address in `node`.
    """

    again: Amount
    waiting: Amount
    skipped: Amount
    older_are_gone: bool
    nodes: list[dict[str, Any]]


async def seek_preview(
    fleet: Fleet, topic: str, channel: str, to: str, nodes: Iterable[str] = ()
) -> Preview:
    """Query what a seek of a channel would do at all nodes, or some; nothing is moved.

    Raises:
        HttpError: the channel or place does not exist, or the nodes are Go's.
    """
    found = await nodes_of(fleet, topic, nodes)
    check_place(to, len(found.nodes))

    async def ask(node: Node) -> tuple[dict[str, Any], SeekResult]:
        # A node that does not know `dry_run` would really seek: sparq's nsqd reports
        # `sparq_version` since it knows it.
        if (await fleet.node_stats(node.at, topic, channel)).sparq_version is None:
            why = "this is Go's nsqd, which cannot replay"
            raise UpstreamError(node.address, why, 404, NO_ROUTE)
        wanted = {"topic": topic, "channel": channel, "to": to, "dry_run": "true"}
        landing = await fleet.post(node, "/channel/seek", **wanted)
        return {"node": node.address, **landing}, checked_answer(node, landing, SeekResult)

    landings = await found.query(ask)
    results = [result for _, result in landings.values()]
    return Preview(
        again=sum(result.again for result in results),
        waiting=sum(result.waiting for result in results),
        skipped=sum(result.skipped for result in results),
        older_are_gone=any(result.older_are_gone for result in results),
        nodes=[landing for _, (landing, _) in sorted(landings.items())],
        **structs.asdict(found.missing),
    )


def check_place(to: str, nodes: int) -> None:
    """Refuse an empty place, and an index unless the seek is for one node: it is of one log."""
    if not to:
        raise HttpError(400, "MISSING_ARG_TO")
    if to.isdigit() and nodes != 1:
        raise HttpError(400, "INVALID_ARG_TO: an index is valid for one node only: choose a node")
