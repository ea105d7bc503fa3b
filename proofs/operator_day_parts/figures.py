"""Compares every figure that nsqadmin, `sparq top` and `sparq admin list` show with the book.

Nothing may change meanwhile. nsqadmin's own view is at most some seconds old, so its pages are
asked again until all figures agree, for `AGREE_SECONDS`; the programs ask the nsqds themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from proofs.operator_day_parts.book import Book, ChannelFigures, Figures, TopicFigures
from proofs.operator_day_parts.crew import LATE_CHANNEL
from proofs.operator_day_parts.site import Site
from proofs.operator_day_parts.tables import grid, printed

AGREE_SECONDS: Final = 15.0
POLL_SECONDS: Final = 0.5
LAG_SECONDS: Final = 4.0
"""nsqadmin's figures may be some seconds old, and so is the first answer that `top` gets."""

BEHIND_SECONDS: Final = 60.0
INFINITY: Final = float("inf")
RATES: Final = ("in_rate", "out_rate", "requeue_rate", "timeout_rate")

NSQ_CHANNEL: Final = {
    "depth": "depth",
    "in_flight_count": "in_flight",
    "deferred_count": "deferred",
    "requeue_count": "requeued",
    "timeout_count": "timed_out",
    "message_count": "messages",
    "client_count": "clients",
    "paused": "paused",
}
"""The names of NSQ's API, and ours."""


CLIENT: Final = ("message_count", "finish_count", "requeue_count")

COMMON_LABELS: Final = {"In flight": "in_flight", "Deferred": "deferred", "Consumers": "clients"}
CHANNEL_LABELS: Final = {"Waiting": "depth", **COMMON_LABELS}
NODE_LABELS: Final = {
    **{"Waiting": "waiting", "Consumers": "clients", "Topics": "topics", "Channels": "channels"}
}
TOPIC_LABELS: Final = {
    **{"Waiting": "waiting", "Channels": "channels", "Nodes": "nodes", "Messages": "messages"},
    **COMMON_LABELS,
}
LIST_LABELS: Final = {
    **{"WAITING": "waiting", "CHANNELS": "channels", "NSQDS": "nodes", "MESSAGES": "messages"}
}
TOP_LABELS: Final = {
    **{"DEPTH": "depth", "IN FLIGHT": "in_flight", "DEFERRED": "deferred", "CLIENTS": "clients"}
}
"""The headings of pages and printed tables, and our names."""


@dataclass(slots=True)
class Comparison:
    """How many figures were compared, and those that differ."""

    compared: int = 0
    wrong: list[str] = field(default_factory=list)

    def check(self, where: str, own: Mapping[str, Any], shown: Mapping[str, Any] | None) -> None:
        """Compare the figures of one row, by name."""
        for name, value in own.items():
            self.compared += 1
            found = (shown or {}).get(name, "missing")
            if found != value:
                self.wrong.append(f"{where}: {name} {found}, own count {value}")

    def check_names(self, where: str, own: Iterable[str], shown: Iterable[str]) -> None:
        """Compare the names that a list has."""
        self.check(where, {"names": sorted(own)}, {"names": sorted(shown)})

    def check_lag(self, where: str, oldest_at: float, shown: Mapping[str, Any] | None) -> None:
        """Compare a lag: the age of the oldest waiting message, within what the answer took."""
        self.compared += 1
        found = (shown or {}).get("lag_seconds", "missing")
        own = time.time() - oldest_at if oldest_at < INFINITY else 0.0
        is_number = isinstance(found, int | float)
        if not is_number or abs(found - own) > (LAG_SECONDS if own else 0.0):
            self.wrong.append(f"{where}: lag_seconds {found}, own count {own:.1f}")

    def check_state(self, where: str, allowed: Sequence[str], shown: Mapping[str, Any]) -> None:
        """Compare a state, of which several can be right while a time runs out."""
        self.compared += 1
        state = shown.get("state", "missing")
        if state not in allowed:
            self.wrong.append(f"{where}: state {state}, own count {' or '.join(allowed)}")

    def add(self, other: Comparison) -> None:
        """Add another comparison."""
        self.compared += other.compared
        self.wrong += other.wrong


class Sheets:
    """All comparisons of one quiet point."""

    def __init__(self, site: Site, book: Book) -> None:
        self.site = site
        self.http = {each.tcp: each.http for each in site.nsqds}
        self.nodes = {self.http[node]: book.figures(node) for node in book.lives}
        self.totals = book.totals()
        self.clients = {
            (self.http[node], topic, channel): book.of_client(node, (topic, channel))
            for node in book.lives
            for topic, figures in self.nodes[self.http[node]].items()
            for channel in figures.channels
        }

    async def all(self, pages: int) -> Comparison:
        """Compare everything; `pages`: how many topics and channels `list` is asked about."""
        # First, because it waits until nsqd has read the last FINs.
        found = await self.nsqadmin()
        parts = [self.top(), self.listed(pages)]
        parts += [self.printed()] if pages > 1 else []
        for each in await asyncio.gather(*parts):
            found.add(each)
        return found

    # nsqadmin

    async def nsqadmin(self) -> Comparison:
        """Compare what nsqadmin shows, until it agrees or the time is over."""
        deadline = time.monotonic() + AGREE_SECONDS
        while True:
            found = Comparison()
            await asyncio.to_thread(self._nsq_api, found)
            await asyncio.to_thread(self._own_api, found)
            await asyncio.to_thread(self._pages, found)
            if not found.wrong or time.monotonic() > deadline:
                return found
            await asyncio.sleep(POLL_SECONDS)

    def _nsq_api(self, found: Comparison) -> None:
        ask = self.site.from_nsqadmin
        found.check_names("/api/topics", self.totals, ask("/api/topics")["topics"] or ())
        for topic, figures in self.totals.items():
            shown = ask(f"/api/topics/{topic}")
            own = {"depth": figures.depth, "message_count": figures.messages}
            found.check(f"/api/topics/{topic}", own | {"paused": figures.paused}, shown)
            parts = {one["node"]: one for one in shown["nodes"] or ()}
            for node, at in self._at(topic).items():
                own = {"depth": at.depth, "message_count": at.messages, "paused": at.paused}
                found.check(f"/api/topics/{topic} at {node}", own, parts.get(node))
            channels = {one["channel_name"]: one for one in shown["channels"] or ()}
            found.check_names(f"channels of /api/topics/{topic}", figures.channels, channels)
            for channel, own_channel in figures.channels.items():
                where = f"/api/topics/{topic}/{channel}"
                found.check(f"{where} (list)", nsq(own_channel), channels.get(channel))
                self._nsq_channel(found, where, topic, channel, own_channel)
        self._nsq_nodes(found)

    def _nsq_channel(
        self, found: Comparison, where: str, topic: str, channel: str, own: ChannelFigures
    ) -> None:
        shown = self.site.from_nsqadmin(where)
        found.check(where, nsq(own), shown)
        parts = {one["node"]: one for one in shown["nodes"] or ()}
        for node, at in self._at(topic).items():
            own_part = at.channels[channel]
            found.check(f"{where} at {node}", nsq(own_part), parts.get(node))
            clients = [one for one in shown["clients"] or () if one["node"] == node]
            listed = {name: sum(one[name] for one in clients) for name in CLIENT}
            listed |= {"clients": len(clients)}
            own_client = self.clients[node, topic, channel] if own_part.clients else {}
            if channel == LATE_CHANNEL:
                # What the client drops because its time is over, the handlers do not see.
                own_client.pop("message_count", None)
            own_client["clients"] = own_part.clients
            found.check(f"{where}: the client at {node}", own_client, listed)

    def _nsq_nodes(self, found: Comparison) -> None:
        ask = self.site.from_nsqadmin
        counted = ask("/api/counter")["stats"]
        for node, figures in self.nodes.items():
            shown = ask(f"/api/nodes/{node}")
            own = {
                "total_messages": sum(each.messages for each in figures.values()),
                "total_clients": sum(
                    c.clients for t in figures.values() for c in t.channels.values()
                ),
            }
            found.check(f"/api/nodes/{node}", own, shown)
            for topic, each in figures.items():
                for channel, own_channel in each.channels.items():
                    key = f"{topic}:{channel}:{node}"
                    row = {"message_count": own_channel.messages}
                    found.check(f"/api/counter {key}", row, counted.get(key))
        own_keys = {f"{t}:{c}:{n}" for n, f in self.nodes.items() for t in f for c in f[t].channels}
        found.check_names("/api/counter", own_keys, counted)

    def _own_api(self, found: Comparison) -> None:
        ask = self.site.from_nsqadmin
        found.check("/api/v2/overview", self._sums(), ask("/api/v2/overview")["totals"])
        topics = {one["topic"]: one for one in ask("/api/v2/topics?limit=1000")["rows"]}
        found.check_names("/api/v2/topics", self.totals, topics)
        for topic, figures in self.totals.items():
            found.check(f"/api/v2/topics {topic}", topic_row(figures), topics.get(topic))
        rows = ask("/api/v2/channels?limit=1000")["rows"]
        channels = {(one["topic"], one["channel"]): one for one in rows}
        for topic, figures in self.totals.items():
            detail = ask(f"/api/v2/topics/{topic}")
            parts = {one["node"]: one["topic"] for one in detail["nodes"]}
            for node, at in self._at(topic).items():
                own = {"messages": at.messages, "depth": at.depth, "paused": at.paused}
                found.check(f"/api/v2/topics/{topic} at {node}", own, parts.get(node))
            for channel, own_channel in figures.channels.items():
                where = f"/api/v2/topics/{topic}/{channel}"
                own = channel_row(own_channel, figures.nodes, figures.paused)
                row = channels.get((topic, channel), {})
                found.check(where, own, row)
                found.check_lag(where, own_channel.oldest_at, row)
                found.check_state(where, states_of(own_channel, topic_paused=False), row)
                detail = ask(where)
                parts = {one["node"]: one["channel"] for one in detail["nodes"]}
                for node, at in self._at(topic).items():
                    at_node = channel_row(at.channels[channel], None, None)
                    found.check(f"{where} at {node}", at_node, parts.get(node))
        self._own_nodes(found)

    def _own_nodes(self, found: Comparison) -> None:
        rows = self.site.from_nsqadmin("/api/v2/nodes")["rows"]
        nodes = {one["address"]: one for one in rows}
        found.check_names("/api/v2/nodes", self.nodes, nodes)
        for node, figures in self.nodes.items():
            own = {**sums(figures), "draining": False, "health": "OK", "state": "up"}
            own |= {"in_rate": 0.0, "out_rate": 0.0}
            found.check(f"/api/v2/nodes {node}", own, nodes.get(node))

    def _pages(self, found: Comparison) -> None:
        """Compare the tables of nsqadmin's pages."""
        topics = grid(self.site.page("/topics?limit=1000"))
        channels = grid(self.site.page("/topics?view=channels&limit=1000"))
        nodes = grid(self.site.page("/nodes"))
        for topic, figures in self.totals.items():
            row = topic_row(figures)
            where = f"/topics/{topic}"
            found.check(f"page of topics: {topic}", labelled(row, TOPIC_LABELS), topics.get(where))
            for channel, own in figures.channels.items():
                cells = labelled(asdict(own), CHANNEL_LABELS)
                where = f"/topics/{topic}/{channel}"
                found.check(f"page of channels: {where}", cells, channels.get(where))
        for node, all_figures in self.nodes.items():
            row, where = sums(all_figures), f"/nodes/{node}"
            found.check(f"page of nodes: {node}", labelled(row, NODE_LABELS), nodes.get(where))
        found.check("pages", {"topics": len(self.totals)}, {"topics": len(topics)})
        own_channels = sum(len(each.channels) for each in self.totals.values())
        found.check("pages", {"channels": own_channels}, {"channels": len(channels)})
        found.check("pages", {"nodes": len(self.nodes)}, {"nodes": len(nodes)})

    def _sums(self) -> dict[str, Any]:
        own = sums(self.totals) | dict.fromkeys(RATES, 0.0)
        return own | {"nodes": len(self.nodes), "nodes_up": len(self.nodes)}

    def _at(self, topic: str) -> dict[str, TopicFigures]:
        """Return the figures of a topic at each node that has it."""
        return {node: figures[topic] for node, figures in self.nodes.items() if topic in figures}

    # The programs

    async def top(self) -> Comparison:
        """Compare what `sparq top --once` shows."""
        found = Comparison()
        ran = await self.site.sparq("top", "--once", "--json")
        document = ran.json
        found.check("top", {"nsqds": len(self.nodes), "errors": {}, "gone": {}}, document)
        rows = {(one["topic"], one["channel"]): one for one in document["rows"]}
        own_rows = {
            (topic, channel): top_row(own) | {"topic_paused": figures.paused}
            for topic, figures in self.totals.items()
            for channel, own in figures.channels.items()
        }
        for topic, figures in self.totals.items():
            if figures.depth or not figures.channels:
                row = {"depth": figures.depth, "paused": figures.paused, "in_rate": 0.0}
                state = "paused" if figures.paused else "ok" if figures.channels else "no channel"
                own_rows[topic, ""] = row | {"state": state}
        found.check_names("top", map(str, own_rows), map(str, rows))
        for key, row in own_rows.items():
            found.check(f"top {key}", row, rows.get(key))
        for topic, figures in self.totals.items():
            for channel, own in figures.channels.items():
                where, shown = f"top {topic} {channel}", rows.get((topic, channel), {})
                found.check_state(where, states_of(own, topic_paused=figures.paused), shown)
                found.check_lag(where, own.oldest_at, shown)
        return found

    async def printed(self) -> Comparison:
        """Compare the tables that `sparq top --once` and `sparq admin list` print."""
        found = Comparison()
        ran = await self.site.sparq("top", "--once")
        rows = {(row["TOPIC"], row["CHANNEL"]): row for row in printed(ran.output)}
        for topic, figures in self.totals.items():
            for channel, own in figures.channels.items():
                cells = labelled(asdict(own), TOP_LABELS)
                cells["PAUSED"] = "yes" if own.paused else "no"
                found.check(f"top prints {topic} {channel}", cells, rows.get((topic, channel)))
        ran = await self.site.done("list")
        rows = {(row["TOPIC"], ""): row for row in printed(ran.output)}
        for topic, figures in self.totals.items():
            cells = labelled(topic_row(figures), LIST_LABELS)
            found.check(f"list prints {topic}", cells, rows.get((topic, "")))
        return found

    async def listed(self, pages: int) -> Comparison:
        """Compare what `sparq admin list` shows: all topics, `pages` topics and channels, nodes."""
        found = Comparison()
        rows = {one["topic"]: one for one in await self._rows()}
        found.check_names("list", self.totals, rows)
        for topic, figures in self.totals.items():
            own = {
                "channels": len(figures.channels),
                "waiting": waiting(figures),
                "messages": figures.messages,
                "paused": figures.paused,
                "nsqds": figures.nodes,
            }
            found.check(f"list: {topic}", own, rows.get(topic))
        topics = [*self.totals][:pages]
        places = [(t, c) for t, figures in self.totals.items() for c in figures.channels][:pages]
        await asyncio.gather(
            *(self._list_topic(found, topic) for topic in topics),
            *(self._list_channel(found, *place) for place in places),
            self._list_nodes(found),
        )
        return found

    async def _rows(self, *words: str) -> list[dict[str, Any]]:
        ran = await self.site.done("list", *words, "--json")
        rows: list[dict[str, Any]] = ran.json["rows"]
        return rows

    async def _list_topic(self, found: Comparison, topic: str) -> None:
        rows = {one["channel"]: one for one in await self._rows(topic)}
        figures = self.totals[topic]
        found.check_names(f"list {topic}", figures.channels, rows)
        for channel, own in figures.channels.items():
            row, where = rows.get(channel, {}), f"list {topic}: {channel}"
            paused = {"topic_paused": figures.paused}
            found.check(where, row_of(own) | paused | {"nsqds": figures.nodes}, row)
            found.check_state(where, states_of(own, topic_paused=figures.paused), row)
            found.check_lag(where, own.oldest_at, row)

    async def _list_channel(self, found: Comparison, topic: str, channel: str) -> None:
        rows = {one["nsqd"]: one for one in await self._rows(topic, channel)}
        found.check_names(f"list {topic} {channel}", self._at(topic), rows)
        for node, at in self._at(topic).items():
            own = row_of(at.channels[channel])
            row, where = rows.get(node, {}), f"list {topic} {channel}: {node}"
            found.check(where, own | {"topic_paused": at.paused}, row)
            found.check_lag(where, at.channels[channel].oldest_at, row)

    async def _list_nodes(self, found: Comparison) -> None:
        rows = {one["address"]: one for one in await self._rows("--nodes")}
        found.check_names("list --nodes", self.nodes, rows)
        for node, figures in self.nodes.items():
            own = {"topics": len(figures), "waiting": sums(figures)["waiting"], "state": "up"}
            found.check(f"list --nodes: {node}", own, rows.get(node))


def labelled(row: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """Return figures as people read them, by heading."""
    return {label: f"{row[name]:,}" for label, name in labels.items()}


def row_of(own: ChannelFigures) -> dict[str, Any]:
    """Return the figures that do not change while everything stands still."""
    row = asdict(own)
    del row["oldest_at"]
    return row


def states_of(own: ChannelFigures, *, topic_paused: bool) -> list[str]:
    """Return the states that a channel may be shown in (docs/glossary.md)."""
    states = ["ok"]
    if own.paused:
        states = ["paused"]
    elif not own.clients:
        states = ["no consumers"]
    elif own.depth + own.in_flight:
        lag = time.time() - own.oldest_at
        # From a lag or an idle time of a minute on; both begin about when this one does.
        states = [*(["ok"] if lag < BEHIND_SECONDS + LAG_SECONDS else [])]
        states += ["behind", "stuck"] if lag > BEHIND_SECONDS - LAG_SECONDS else []
    if not topic_paused:
        return states
    return ["topic paused" if each == "ok" else f"{each}, topic paused" for each in states]


def nsq(own: ChannelFigures) -> dict[str, Any]:
    """Return the figures by the names of NSQ's API."""
    return {theirs: getattr(own, name) for theirs, name in NSQ_CHANNEL.items()}


def channel_row(
    own: ChannelFigures, nodes: int | None, topic_paused: bool | None
) -> dict[str, Any]:
    """Return the figures of a row of nsqadmin's API."""
    row = row_of(own) | dict.fromkeys(RATES, 0.0)
    if nodes is not None:
        row |= {"nodes": nodes, "topic_paused": topic_paused}
    return row


def topic_row(figures: TopicFigures) -> dict[str, Any]:
    """Return the figures of a row of nsqadmin's API."""
    channels = [*figures.channels.values()]
    return {
        "messages": figures.messages,
        "depth": figures.depth,
        "waiting": waiting(figures),
        "paused": figures.paused,
        "channels": len(channels),
        "nodes": figures.nodes,
        "in_rate": 0.0,
        **{name: sum(getattr(c, name) for c in channels) for name in SUMMED},
    }


def top_row(own: ChannelFigures) -> dict[str, Any]:
    """Return the figures of a row of `sparq top`."""
    names = ("depth", "in_flight", "deferred", "clients", "paused")
    return {name: getattr(own, name) for name in names} | dict.fromkeys(RATES, 0.0)


SUMMED: Final = ("in_flight", "deferred", "clients")


def waiting(figures: TopicFigures) -> int:
    """Return how many messages wait in a topic and its channels."""
    return figures.depth + sum(each.depth for each in figures.channels.values())


def sums(figures: Figures) -> dict[str, Any]:
    """Return the sums over topics and channels."""
    channels = [each for topic in figures.values() for each in topic.channels.values()]
    return {
        "topics": len(figures),
        "channels": len(channels),
        "messages": sum(each.messages for each in figures.values()),
        "waiting": sum(map(waiting, figures.values())),
        **{name: sum(getattr(each, name) for each in channels) for name in SUMMED},
    }
