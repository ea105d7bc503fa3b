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
from itertools import islice
from typing import Final
from urllib.parse import quote

from sparq.cluster.rows import ChannelRow, TopicRow
from sparq.cluster.upstream import NOT_SHOWN
from sparq.nsqadmin.watch.rows import LEVELS, Level, Lookupd, NodeRow, Notice
from sparq.nsqadmin.watch.words import count, duration, names, rate

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
    found = [*_nodes(nodes, time), *_channels(channels), *_topics(topics), *_lookupds(lookupds)]
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


def _few(
    kind: str,
    level: Level,
    cases: Iterable[tuple[str, str, str]],
    total: int,
    more: tuple[str, str],
) -> Iterator[Notice]:
    """Yield the notices of one kind of trouble (rule 1).

    Args:
        cases: for each of the largest cases its name, the sentence without the name, and its page.
        total: number of cases.
        more: the sentence about the other cases, without their number, and their page.
    """
    for name, sentence, page in islice(cases, SHOWN_MAX):
        yield Notice(f"{kind}:{name}", level, f"{name} {sentence}.", page)
    if total > SHOWN_MAX:
        yield Notice(f"{kind}:more", level, f"{total - SHOWN_MAX:,} more {more[0]}.", more[1])


def _wait(number: int) -> str:
    return f"{count(number, 'message')} {'waits' if number == 1 else 'wait'}"


# Nodes


def _nodes(nodes: Sequence[NodeRow], time: float) -> Iterator[Notice]:
    there = [node for node in nodes if node.state != "gone"]

    def few(
        kind: str, level: Level, many: str, cases: Iterable[NodeRow], of: Callable[[NodeRow], str]
    ) -> Iterator[Notice]:
        concerned = [*cases]
        named = ((node.address, of(node), node_link(node.address)) for node in concerned)
        return _few(kind, level, named, len(concerned), (f"nodes {many}", "/nodes?sort=state"))

    for state in ("gone", "silent", "unregistered"):
        level: Level = "warn" if state != "gone" else "bad"
        concerned = [node for node in nodes if node.state == state and not node.was_drained]
        concerned.sort(key=lambda node: -node.waiting)
        yield from few(state, level, f"are {state}", concerned, lambda node: _of_state(node, time))
    yield from few(
        "drained",
        "note",
        "were drained and have left",
        (node for node in nodes if node.was_drained),
        lambda node: f"was drained and has left, {_since(node, time)} ago; no messages are there",
    )
    yield from few(
        "short",
        "bad",
        "have a full disk",
        (node for node in there if node.is_short),
        lambda _: "refuses publishes: its disk is full",
    )
    yield from few(
        "draining",
        "note",
        "are draining",
        (node for node in there if node.draining),
        lambda node: f"is draining; {_wait(node.waiting)}",
    )
    yield from few(
        "health",
        "bad",
        "have disk errors",
        (node for node in there if not node.is_well and not node.is_short),
        lambda node: f"has a disk error: {node.health}",
    )


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


# Channels


def _channels(rows: Sequence[ChannelRow]) -> Iterator[Notice]:
    def grows(row: ChannelRow) -> bool:
        growth = row.growth or 0.0
        return growth >= GROWTH_MIN and growth * 60 >= GROWN_MIN * row.depth

    def few(
        kind: str,
        level: Level,
        cases: list[ChannelRow],
        of: Callable[[ChannelRow], str],
        more: tuple[str, str],
    ) -> Iterator[Notice]:
        named = ((f"{r.topic}/{r.channel}", of(r), channel_link(r.topic, r.channel)) for r in cases)
        link = f"/topics?view=channels&state={more[1]}"
        return _few(kind, level, named, len(cases), (f"channels {more[0]}", link))

    by_depth = sorted(rows, key=lambda row: -row.depth)
    stuck = [row for row in rows if row.state == "stuck"]
    stuck.sort(key=lambda row: -row.depth - row.in_flight)
    yield from few("stuck", "bad", stuck, _stuck, ("have consumers that finish nothing", "stuck"))
    alone = [row for row in by_depth if row.state == "no consumers" and row.depth]
    more = ("have no consumers and grow", "no+consumers")
    yield from few("no-consumers", "bad", [row for row in alone if grows(row)], _alone, more)
    idle = [row for row in alone if not grows(row)]
    more = ("with messages have no consumers", "no+consumers")
    yield from few("no-consumers-idle", "warn", idle, _alone, more)
    growing = [r for r in rows if r.state in ("ok", "behind") and r.depth and grows(r)]
    growing.sort(key=lambda row: -(row.growth or 0.0))
    more = ("grow faster than they are read", "behind")
    yield from few("growing", "warn", growing, _growing, more)
    behind = [row for row in rows if row.state == "behind" and row.depth and not grows(row)]
    behind.sort(key=lambda row: -(row.lag_seconds or 0.0))
    yield from few("behind", "note", behind, _behind, ("are behind", "behind"))
    paused = [row for row in by_depth if row.state == "paused"]
    yield from few("paused", "note", paused, _paused, ("are paused", "paused"))


def _stuck(row: ChannelRow) -> str:
    who = count(row.clients, "consumer") if row.clients else "a range reader"
    has = "have" if row.clients > 1 else "has"
    in_flight = f", {row.in_flight:,} in flight" if row.in_flight else ""
    since = duration(row.unfinished_seconds)
    return f"is stuck: {who} {has} finished nothing for {since}; {_wait(row.depth)}{in_flight}"


def _alone(row: ChannelRow) -> str:
    more = f", {rate(row.growth)} more per second" if row.growth and row.growth > 0 else ""
    return f"has no consumers; {_wait(row.depth)}{more}"


def _growing(row: ChannelRow) -> str:
    grows = f"grows by {rate(row.growth or 0)} messages per second; {_wait(row.depth)}"
    if row.out_rate is None:
        return grows
    return f"{grows}. Its consumers finish {rate(row.out_rate)} per second"


def _behind(row: ChannelRow) -> str:
    until = ""
    if row.clear_seconds is not None and row.clear_seconds != math.inf:
        until = f"; at this rate it will catch up in {duration(row.clear_seconds)}"
    return f"is behind by {duration(row.lag_seconds or 0)}, {_wait(row.depth)}{until}"


def _paused(row: ChannelRow) -> str:
    return f"is paused; {_wait(row.depth)}"


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
    known = frozenset[str]().union(*(each.nodes for each in answered))
    partly = [(each, sorted(known - each.nodes)) for each in answered if known - each.nodes]
    for each, missing in partly[:SHOWN_MAX]:
        sentence = f"nsqlookupd {each.address} does not list {names(missing)}, but another does."
        yield Notice(f"disagree:{each.address}", "warn", sentence, "/nodes")
