"""Notices about trouble in the cluster: a few sentences, the most serious first, each with a link.

1. For each kind of trouble, the `SHOWN_MAX` largest cases have one sentence each, and the others
   one sentence together. So there are never more than a few dozen, however much is wrong.
2. A notice's key stays the same while the trouble lasts, even if its figures change.
3. A channel has one notice: the one for its most serious trouble.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from sparq.cluster.figures import STATES
from sparq.cluster.upstream import NOT_SHOWN
from sparq.nsqadmin.watch.rows import LEVELS, ChannelRow, Level, Lookupd, NodeRow, Notice, TopicRow
from sparq.nsqadmin.watch.tables import ColumnTable
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
    topics: ColumnTable[TopicRow],
    channels: ColumnTable[ChannelRow],
    lookupds: Sequence[Lookupd],
    refused: Mapping[str, str],
    names_left_out: int,
) -> tuple[Notice, ...]:
    """Find all notices, the most serious first.

    Args:
        time: seconds since 1970.
        nodes, topics, channels, lookupds: the cluster.
        refused: by address, why a registered node is not queried.
        names_left_out: number of topics and channels beyond the maximum (`names.NAMES_MAX`).
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


def _channels(table: ColumnTable[ChannelRow]) -> Iterator[Notice]:
    columns = table.columns
    depth, growth = columns["depth"], np.nan_to_num(columns["growth"])
    grows = (growth >= GROWTH_MIN) & (growth * 60 >= GROWN_MIN * depth)
    in_state = {state: columns["state"] == place for place, state in enumerate(STATES)}
    alone, behind = in_state["no consumers"] & (depth > 0), in_state["behind"] & (depth > 0)
    growing = (in_state["ok"] | in_state["behind"]) & grows & (depth > 0)
    waiting, lag = depth + columns["in_flight"], columns["lag_seconds"]
    without = "channels with messages have no consumers"
    cases: tuple[_Case, ...] = (
        (
            "stuck",
            "bad",
            in_state["stuck"],
            waiting,
            _stuck,
            "stuck",
            "channels have consumers that finish nothing",
        ),
        (
            "no-consumers",
            "bad",
            alone & grows,
            depth,
            _alone,
            "no+consumers",
            "channels have no consumers and grow",
        ),
        ("no-consumers-idle", "warn", alone & ~grows, depth, _alone, "no+consumers", without),
        (
            "growing",
            "warn",
            growing,
            growth,
            _growing,
            "behind",
            "channels grow faster than they are read",
        ),
        ("behind", "note", behind & ~grows, lag, _behind, "behind", "channels are behind"),
        ("paused", "note", in_state["paused"], depth, _paused, "paused", "channels are paused"),
    )
    for kind, level, mask, size, of, state, more in cases:
        places = np.flatnonzero(mask)
        largest = places[np.argsort(-size[places], kind="stable")][:SHOWN_MAX]
        rows = [table[place] for place in largest.tolist()]
        named = [(f"{r.topic}/{r.channel}", of(r), channel_link(r.topic, r.channel)) for r in rows]
        link = f"/topics?view=channels&state={state}"
        yield from _few(kind, level, named, len(places), (more, link))


_Case = tuple[str, Level, NDArray[np.bool_], NDArray[Any], Callable[[ChannelRow], str], str, str]
"""Kind and level of trouble, the channels that have it, their size, the sentence about one, and the
state and the sentence of those that are not shown.
"""


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
    if row.clear_seconds is not None and row.clear_seconds != np.inf:
        until = f"; at this rate it will catch up in {duration(row.clear_seconds)}"
    return f"is behind by {duration(row.lag_seconds or 0)}, {_wait(row.depth)}{until}"


def _paused(row: ChannelRow) -> str:
    return f"is paused; {_wait(row.depth)}"


# Topics


def _topics(table: ColumnTable[TopicRow]) -> Iterator[Notice]:
    columns = table.columns
    without = np.flatnonzero((columns["channels"] == 0) & ~columns["paused"])
    without = without[np.argsort(-columns["depth"][without], kind="stable")]
    waiting = int(columns["depth"][without].sum())
    if len(without):
        wait = f"; {_wait(waiting)} for a first channel" if waiting else ""
        sentence, link = _all_of(table, without, ("has", "have"), "no channel", "channels")
        level: Level = "warn" if waiting else "note"
        yield Notice("no-channel", level, f"{sentence}{wait}.", link)
    paused = np.flatnonzero(columns["paused"])
    if len(paused):
        sentence, link = _all_of(table, paused, ("is", "are"), "paused", "-paused")
        yield Notice("topics-paused", "note", f"{sentence}.", link)


def _all_of(
    table: ColumnTable[TopicRow],
    places: NDArray[np.intp],
    verbs: tuple[str, str],
    what: str,
    sort: str,
) -> tuple[str, str]:
    """A sentence about all of these topics, and their page."""
    topics = [table.keys[place][0] for place in places.tolist()]
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
