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
    found = [
        *_nodes(nodes, time),
        *_channels(channels),
        *_topics(topics),
        *_lookupds(lookupds),
        *_refused(refused),
        *_versions(nodes),
        *_left_out(names_left_out),
    ]
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
    case: tuple[str, Level],
    cases: Iterable[tuple[str, str, str]],
    total: int,
    more: tuple[str, str],
) -> Iterator[Notice]:
    """Yield the notices of one kind of trouble (rule 1).

    Args:
        case: the kind of trouble and its level.
        cases: for each of the largest cases its name, the sentence without the name, and its page.
        total: number of cases.
        more: the sentence about the other cases, without their number, and their page.
    """
    kind, level = case
    for name, sentence, link in islice(cases, SHOWN_MAX):
        yield Notice(f"{kind}:{name}", level, f"{name} {sentence}.", link)
    if total > SHOWN_MAX:
        yield Notice(f"{kind}:more", level, f"{total - SHOWN_MAX:,} more {more[0]}.", more[1])


def _wait(number: int) -> str:
    return f"{count(number, 'message')} {'waits' if number == 1 else 'wait'}"


# Nodes


def _nodes(nodes: Sequence[NodeRow], time: float) -> Iterator[Notice]:
    for state in ("gone", "silent", "unregistered"):
        concerned = [node for node in nodes if node.state == state and not node.was_drained]
        concerned.sort(key=lambda node: -node.waiting)
        level: Level = "warn" if state != "gone" else "bad"
        cases = [(node, _of_state(node, time)) for node in concerned]
        yield from _few_nodes((state, level), f"nodes are {state}", cases)
    left = [(node, _LEFT.format(duration(max(0.0, time - node.since_at)))) for node in nodes]
    left = [(node, sentence) for node, sentence in left if node.was_drained]
    yield from _few_nodes(("drained", "note"), "nodes were drained and have left", left)
    there = [node for node in nodes if node.state != "gone"]
    full = "refuses publishes: its disk is full"
    short = [(node, full) for node in there if node.is_short]
    yield from _few_nodes(("short", "bad"), "nodes have a full disk", short)
    draining = [(node, f"is draining; {_wait(node.waiting)}") for node in there if node.draining]
    yield from _few_nodes(("draining", "note"), "nodes are draining", draining)
    ill = [node for node in there if node.health not in ("", "OK") and not node.is_short]
    cases = [(node, f"has a disk error: {node.health}") for node in ill]
    yield from _few_nodes(("health", "bad"), "nodes have disk errors", cases)


_LEFT: Final = "was drained and has left, {} ago; no messages are there"


def _of_state(node: NodeRow, time: float) -> str:
    for_long = duration(max(0.0, time - node.since_at))
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


def _few_nodes(
    case: tuple[str, Level], many: str, cases: Sequence[tuple[NodeRow, str]]
) -> Iterator[Notice]:
    named = ((node.address, sentence, node_link(node.address)) for node, sentence in cases)
    return _few(case, named, len(cases), (many, "/nodes?sort=state"))


# Channels


def _channels(table: ColumnTable[ChannelRow]) -> Iterator[Notice]:
    if not len(table):
        return
    columns = table.columns
    state, depth = columns["state"], columns["depth"]
    waiting = depth + columns["in_flight"]
    growth = np.nan_to_num(columns["growth"])
    grows = (growth >= GROWTH_MIN) & (growth * 60 >= GROWN_MIN * depth)
    stuck = _is(state, "stuck")
    alone = _is(state, "no consumers") & (depth > 0)
    behind = (_is(state, "ok") | _is(state, "behind")) & grows & (depth > 0)
    paused = _is(state, "paused")
    yield from _few_channels(table, ("stuck", "bad"), _stuck, stuck, waiting)
    yield from _few_channels(table, ("no-consumers", "bad"), _alone, alone & grows, depth)
    yield from _few_channels(table, ("no-consumers-idle", "warn"), _alone, alone & ~grows, depth)
    yield from _few_channels(table, ("growing", "warn"), _growing, behind, growth)
    slow = _is(state, "behind") & ~grows & (depth > 0)
    lag = columns["lag_seconds"]
    yield from _few_channels(table, ("behind", "note"), _behind, slow, lag)
    yield from _few_channels(table, ("paused", "note"), _paused, paused, depth)


def _is(states: NDArray[Any], state: str) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = states == STATES.index(state)
    return found


_MORE = {
    "stuck": ("channels have consumers that finish nothing", "stuck"),
    "no-consumers": ("channels have no consumers and grow", "no+consumers"),
    "no-consumers-idle": ("channels with messages have no consumers", "no+consumers"),
    "growing": ("channels grow faster than they are read", "behind"),
    "behind": ("channels are behind", "behind"),
    "paused": ("channels are paused", "paused"),
}


def _few_channels(
    table: ColumnTable[ChannelRow],
    case: tuple[str, Level],
    sentence_of: Callable[[ChannelRow], str],
    mask: NDArray[np.bool_],
    size: NDArray[Any],
) -> Iterator[Notice]:
    """Yield notices of the channels in `mask`, those with the largest `size` first."""
    places = np.flatnonzero(mask)
    largest = places[np.argsort(-size[places], kind="stable")][:SHOWN_MAX]
    rows = map(table.row, largest.tolist())
    named = (
        (f"{row.topic}/{row.channel}", sentence_of(row), channel_link(row.topic, row.channel))
        for row in rows
    )
    what, state = _MORE[case[0]]
    return _few(case, named, len(places), (what, f"/topics?view=channels&state={state}"))


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
    if not len(table):
        return
    columns = table.columns
    without = np.flatnonzero((columns["channels"] == 0) & ~columns["paused"])
    without = without[np.argsort(-columns["depth"][without], kind="stable")]
    if len(without):
        topics = [table.keys[place][0] for place in without.tolist()]
        waiting = int(columns["depth"][without].sum())
        has = "topic has" if len(topics) == 1 else "topics have"
        wait = f"; {_wait(waiting)} for a first channel" if waiting else ""
        sentence = f"{len(topics):,} {has} no channel: {names(topics)}{wait}."
        link = topic_link(topics[0]) if len(topics) == 1 else "/topics?sort=channels"
        yield Notice("no-channel", "warn" if waiting else "note", sentence, link)
    paused = np.flatnonzero(columns["paused"])
    if len(paused):
        topics = [table.keys[place][0] for place in paused.tolist()]
        are = "topic is" if len(topics) == 1 else "topics are"
        link = topic_link(topics[0]) if len(topics) == 1 else "/topics?sort=-paused"
        sentence = f"{len(topics):,} {are} paused: {names(topics)}."
        yield Notice("topics-paused", "note", sentence, link)


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


def _refused(refused: Mapping[str, str]) -> Iterator[Notice]:
    for address, why in sorted(refused.items())[:SHOWN_MAX]:
        yield Notice(f"refused:{address}", "warn", f"{address}: {why}.", "/nodes")


def _versions(nodes: Sequence[NodeRow]) -> Iterator[Notice]:
    known = (node.version for node in nodes if node.version and node.state != "gone")
    versions = sorted(Counter(known).items())
    if len(versions) > 1:
        text = names([f"{version} on {number:,}" for version, number in versions], 4)
        sentence = f"Nodes have different versions: {text}."
        yield Notice("versions", "warn", sentence, "/nodes?sort=version")


def _left_out(number: int) -> Iterator[Notice]:
    if number:
        sentence = f"{number:,} topics and channels are not shown: the limit is reached."
        yield Notice("left-out", "warn", sentence, "/topics")
