"""Notices about trouble in the cluster: a few sentences, the most serious first, each with a link.

1. For each kind of trouble, the `SHOWN_MAX` largest cases have one sentence each, and the others
   one sentence together. So there are never more than a few dozen, however much is wrong.
2. A notice's key stays the same while the trouble lasts, even if its figures change.
3. A channel has one notice: the one for its most serious trouble.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from sparq.cluster.rows import ChannelRow, TopicRow
from sparq.cluster.upstream import NOT_SHOWN
from sparq.nsqadmin.watch.rows import LEVELS, Level, Lookupd, NodeRow, NodeState, Notice
from sparq.nsqadmin.words import count, duration, names, rate

SHOWN_MAX: Final = 3
ANSWERED, UNAUTHORIZED, FORBIDDEN = (f"got response{code}" for code in ("", " 401", " 403"))
"""How the texts of errors begin if the daemon has answered (`cluster.upstream`)."""

FAULTY: Final = "unreadable statistics"
"""How they begin if its answer cannot be used (`cluster.figures`)."""

GROWTH_MIN: Final = 1.0
"""Messages per second; slower growth gets no notice."""

GROWN_MIN: Final = 0.1
"""Part of its depth by which a channel must grow in a minute to get a notice."""


def attention(
    *,
    time: float,
    nodes: Sequence[NodeRow],
    topics: Sequence[TopicRow],
    channels: Sequence[ChannelRow],
    lookupds: Sequence[Lookupd],
    refused: Mapping[str, str],
    names_left_out: int,
) -> tuple[Notice, ...]:
    """Find all notices, the most serious first.

    Args:
        time: seconds since 1970.
        nodes, topics, channels, lookupds: the cluster.
        refused: by address, why a registered node is not queried.
        names_left_out: number of topics and channels beyond the maximum (`cluster.rows.NAMES_MAX`).
    """
    found = [*_of_kinds(NODES, nodes, time), *_of_kinds(CHANNELS, channels, time)]
    found += [*_topics(topics), *_lookupds(lookupds)]
    for address, why in sorted(refused.items())[:SHOWN_MAX]:
        found.append(Notice(f"refused:{address}", "warn", f"{address}: {why}.", "/nodes"))
    known = (node.version for node in nodes if node.version and node.state != "gone")
    versions = [f"{version} on {number:,}" for version, number in sorted(Counter(known).items())]
    if len(versions) > 1:
        sentence = f"Nodes have different versions: {names(versions, 4)}."
        found.append(Notice("versions", "warn", sentence, "/nodes?sort=version"))
    if names_left_out:
        sentence = f"{names_left_out:,} topics and channels are not shown: the limit is reached."
        found.append(Notice("left-out", "warn", sentence, "/topics"))
    return tuple(sorted(found, key=lambda notice: LEVELS.index(notice.level)))


def channel_link(topic: str, channel: str) -> str:
    """Path of a channel's page, below the base path."""
    return f"{topic_link(topic)}/{quote(channel, safe='')}"


def topic_link(topic: str) -> str:
    """Path of a topic's page, below the base path."""
    return f"/topics/{quote(topic, safe='')}"


def node_link(address: str) -> str:
    """Path of a node's page, below the base path."""
    return f"/nodes/{quote(address, safe=':')}"


class Kind(NamedTuple):
    """A kind of trouble of nodes or channels.

    Attributes:
        key: its name in keys of notices.
        has: whether a row has it.
        sentence: what is said of a row at a time, after its name.
        more: what is said of the other rows, after their number.
        link: their page.
        size: the largest rows come first.
    """

    key: str
    level: Level
    has: Callable[[Any], bool]
    sentence: Callable[[Any, float], str]
    more: str
    link: str
    size: Callable[[Any], float] = lambda _: 0.0


def _of_kinds(kinds: Iterable[Kind], rows: Sequence[Any], time: float) -> Iterator[Notice]:
    """Yield the notices of each kind (rule 1)."""
    for kind in kinds:
        cases = sorted(filter(kind.has, rows), key=kind.size, reverse=True)
        for row in cases[:SHOWN_MAX]:
            name, link = (
                (row.address, node_link(row.address))
                if isinstance(row, NodeRow)
                else (row.text, channel_link(row.topic, row.channel))
            )
            sentence = f"{name} {kind.sentence(row, time)}."
            yield Notice(f"{kind.key}:{name}", kind.level, sentence, link)
        if (left := len(cases) - SHOWN_MAX) > 0:
            yield Notice(f"{kind.key}:more", kind.level, f"{left:,} more {kind.more}.", kind.link)


def _wait(number: int) -> str:
    return f"{count(number, 'message')} {'waits' if number == 1 else 'wait'}"


# Nodes


def _since(node: NodeRow, time: float) -> str:
    return duration(max(0.0, time - node.since_at))


def _of_state(node: NodeRow, time: float) -> str:
    for_long = _since(node, time)
    number = node.waiting + node.in_flight + node.deferred
    if node.state == "gone":
        why = f" ({node.error})" if node.error else ""
        there = f"{_wait(number)} there" if number else "no messages were waiting there"
        return f"has been gone for {for_long}{why}; {there}"
    if node.state == "silent":
        own = count(number, "message")
        silence = f"has not answered for {for_long}"
        if node.error:
            silence = f"{_of_error(node.error)}, for {for_long}"
        return f"{silence}; the figures of its {own} are out of date"
    return f"runs, but no nsqlookupd has listed it for {for_long}: consumers do not find it"


def _of_error(error: str) -> str:
    """Describe why a query of a daemon failed, and how to fix it if the token was refused."""
    if error.startswith(NOT_SHOWN):
        return error
    if error.startswith(UNAUTHORIZED):
        return f"requires a token: set --upstream-token to a token that is valid there ({error})"
    if error.startswith(FORBIDDEN):
        return f"does not allow the token of --upstream-token to read all topics ({error})"
    if error.startswith(FAULTY):
        return f"is faulty: it sends {error}"
    if error.startswith(ANSWERED):
        return f"answered with an error: {error}"
    return f"does not answer: {error}"


def _has_state(state: NodeState) -> Callable[[NodeRow], bool]:
    return lambda node: node.state == state and not node.was_drained


BY_STATE: Final = "/nodes?sort=state"
STATES: Final[tuple[tuple[NodeState, Level], ...]] = (
    *(("gone", "bad"), ("silent", "warn"), ("unregistered", "warn")),
)
NODES: Final = (
    *(
        Kind(
            state,
            level,
            _has_state(state),
            _of_state,
            f"nodes are {state}",
            BY_STATE,
            attrgetter("waiting"),
        )
        for state, level in STATES
    ),
    Kind(
        "drained",
        "note",
        lambda node: node.was_drained,
        lambda node, time: (
            f"was drained and has left, {_since(node, time)} ago; no messages are there"
        ),
        "nodes were drained and have left",
        BY_STATE,
    ),
    Kind(
        "short",
        "bad",
        lambda node: node.is_short and node.state != "gone",
        lambda *_: "refuses publishes: its disk is full",
        "nodes have a full disk",
        BY_STATE,
    ),
    Kind(
        "draining",
        "note",
        lambda node: node.draining and node.state != "gone",
        lambda node, _: f"is draining; {_wait(node.waiting)}",
        "nodes are draining",
        BY_STATE,
    ),
    Kind(
        "health",
        "bad",
        lambda node: not node.is_well and not node.is_short and node.state != "gone",
        lambda node, _: f"has a disk error: {node.health}",
        "nodes have disk errors",
        BY_STATE,
    ),
)


# Channels


def _grows(row: ChannelRow) -> bool:
    growth = row.growth or 0.0
    return growth >= GROWTH_MIN and growth * 60 >= GROWN_MIN * row.depth


def _stuck(row: ChannelRow, _: float) -> str:
    who = count(row.clients, "consumer") if row.clients else "a range reader"
    has = "have" if row.clients > 1 else "has"
    in_flight = f", {row.in_flight:,} in flight" if row.in_flight else ""
    since = duration(row.unfinished_seconds)
    return f"is stuck: {who} {has} finished nothing for {since}; {_wait(row.depth)}{in_flight}"


def _alone(row: ChannelRow, _: float) -> str:
    more = f", {rate(row.growth)} more per second" if row.growth and row.growth > 0 else ""
    return f"has no consumers; {_wait(row.depth)}{more}"


def _growing(row: ChannelRow, _: float) -> str:
    grows = f"grows by {rate(row.growth or 0)} messages per second; {_wait(row.depth)}"
    if row.out_rate is None:
        return grows
    return f"{grows}. Its consumers finish {rate(row.out_rate)} per second"


def _behind(row: ChannelRow, _: float) -> str:
    until = ""
    if row.clear_seconds is not None and row.clear_seconds != math.inf:
        until = f"; at this rate it will catch up in {duration(row.clear_seconds)}"
    return f"is behind by {duration(row.lag_seconds or 0)}, {_wait(row.depth)}{until}"


BY_CHANNEL: Final = "/topics?view=channels&state="
CHANNELS: Final = (
    Kind(
        "stuck",
        "bad",
        lambda row: row.state == "stuck",
        _stuck,
        "channels have consumers that finish nothing",
        f"{BY_CHANNEL}stuck",
        lambda row: row.depth + row.in_flight,
    ),
    Kind(
        "no-consumers",
        "bad",
        lambda row: row.state == "no consumers" and row.depth > 0 and _grows(row),
        _alone,
        "channels have no consumers and grow",
        f"{BY_CHANNEL}no+consumers",
        attrgetter("depth"),
    ),
    Kind(
        "no-consumers-idle",
        "warn",
        lambda row: row.state == "no consumers" and row.depth > 0 and not _grows(row),
        _alone,
        "channels with messages have no consumers",
        f"{BY_CHANNEL}no+consumers",
        attrgetter("depth"),
    ),
    Kind(
        "growing",
        "warn",
        lambda row: row.state in ("ok", "behind") and row.depth > 0 and _grows(row),
        _growing,
        "channels grow faster than they are read",
        f"{BY_CHANNEL}behind",
        lambda row: row.growth or 0.0,
    ),
    Kind(
        "behind",
        "note",
        lambda row: row.state == "behind" and row.depth > 0 and not _grows(row),
        _behind,
        "channels are behind",
        f"{BY_CHANNEL}behind",
        lambda row: row.lag_seconds or 0.0,
    ),
    Kind(
        "paused",
        "note",
        lambda row: row.state == "paused",
        lambda row, _: f"is paused; {_wait(row.depth)}",
        "channels are paused",
        f"{BY_CHANNEL}paused",
        attrgetter("depth"),
    ),
)


# Topics


def _topics(rows: Sequence[TopicRow]) -> Iterator[Notice]:
    without = [row for row in rows if not row.channels and not row.paused]
    without.sort(key=lambda row: -row.depth)
    waiting = sum(row.depth for row in without)
    if without:
        wait = f"; {_wait(waiting)} for a first channel" if waiting else ""
        sentence, link = _all_of(without, ("has", "have"), "no channel", "channels")
        level: Level = "warn" if waiting else "note"
        yield Notice("no-channel", level, f"{sentence}{wait}.", link)
    paused = [row for row in rows if row.paused]
    if paused:
        sentence, link = _all_of(paused, ("is", "are"), "paused", "-paused")
        yield Notice("topics-paused", "note", f"{sentence}.", link)


def _all_of(
    rows: Sequence[TopicRow], verbs: tuple[str, str], what: str, sort: str
) -> tuple[str, str]:
    """A sentence about all of these topics, and their page."""
    topics = [row.topic for row in rows]
    are = f"topic {verbs[0]}" if len(topics) == 1 else f"topics {verbs[1]}"
    link = topic_link(topics[0]) if len(topics) == 1 else f"/topics?sort={sort}"
    return f"{len(topics):,} {are} {what}: {names(topics)}", link


# The cluster


def _lookupds(lookupds: Sequence[Lookupd]) -> Iterator[Notice]:
    failed = [each for each in lookupds if each.error]
    level: Level = "bad" if len(failed) == len(lookupds) else "warn"
    for each in failed[:SHOWN_MAX]:
        sentence = f"nsqlookupd {each.address} {_of_error(each.error)}."
        yield Notice(f"lookupd:{each.address}", level, sentence, "/nodes")
    answered = [each for each in lookupds if not each.error]
    known = set[str]().union(*(each.nodes for each in answered))
    missing_at = [(each, sorted(known.difference(each.nodes))) for each in answered]
    for each, missing in [one for one in missing_at if one[1]][:SHOWN_MAX]:
        sentence = f"nsqlookupd {each.address} does not list {names(missing)}, but another does."
        yield Notice(f"disagree:{each.address}", "warn", sentence, "/nodes")
