"""Compares every figure that nsqadmin, `sparq top` and `sparq admin list` show with the book.

Nothing may change meanwhile. nsqadmin's own view is at most some seconds old, so its pages are
asked again until all figures agree, for `AGREE_SECONDS`; the programs ask the nsqds themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from proofs.operator_day_parts.book import Book, ChannelFigures, Comparison, Figures, TopicFigures
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

Row = Mapping[str, Any]
Rows = Mapping[Any, Row]
"""Rows by what they are about."""


class Lag(NamedTuple):
    """A figure that is the age of the oldest waiting message, at some time after `since`."""

    oldest_at: float
    since: float

    def fits(self, shown: object) -> bool:
        """Whether a shown figure can be right."""
        if self.oldest_at == INFINITY:
            return shown == 0
        least, most = self.since - self.oldest_at, time.time() - self.oldest_at
        return isinstance(shown, int | float) and (
            least - LAG_SECONDS <= shown <= most + LAG_SECONDS
        )


class State(NamedTuple):
    """A state, of which several can be right while a time runs out (docs/glossary.md)."""

    own: ChannelFigures
    since: float
    topic_paused: bool = False

    def fits(self, shown: object) -> bool:
        """Whether a shown state can be right."""
        own, states = self.own, ["ok"]
        if own.paused:
            states = ["paused"]
        elif not own.clients:
            states = ["no consumers"]
        elif own.depth + own.in_flight:
            # From a lag or an idle time of a minute on; both begin about when this one does.
            limit = own.oldest_at + BEHIND_SECONDS
            states = [*(["ok"] if self.since < limit + LAG_SECONDS else [])]
            states += ["behind", "stuck"] if time.time() > limit - LAG_SECONDS else []
        if self.topic_paused:
            states = ["topic paused" if s == "ok" else f"{s}, topic paused" for s in states]
        return shown in states


def by(rows: Iterable[dict[str, Any]] | None, *names: str, part: str = "") -> dict[Any, Any]:
    """Return rows, or a part of each, by some of their figures."""
    found = {}
    for row in rows or ():
        key = tuple(row[name] for name in names)
        found[key if len(names) > 1 else key[0]] = row[part] if part else row
    return found


class Sheets:
    """All comparisons of one quiet point; what differs is added to `found`."""

    def __init__(self, site: Site, book: Book) -> None:
        self.site = site
        self.found = Comparison()
        self.since = time.time()
        self.http = {each.tcp: each.http for each in site.nsqds}
        self.nodes = {self.http[node]: book.figures(node) for node in book.lives}
        self.totals = book.totals()
        self.channels = {
            (topic, channel): (own, figures)
            for topic, figures in self.totals.items()
            for channel, own in figures.channels.items()
        }
        self.clients = {
            (self.http[node], topic, channel): book.of_client(node, (topic, channel))
            for node in book.lives
            for topic, figures in self.nodes[self.http[node]].items()
            for channel in figures.channels
        }

    async def all(self, pages: int) -> Comparison:
        """Compare everything; `pages`: how many topics and channels `list` is asked about."""
        # First, because it waits until nsqd has read the last FINs.
        await self.nsqadmin()
        parts = [self.top(), self.listed(pages)]
        await asyncio.gather(*parts, *([self.printed()] if pages > 1 else []))
        return self.found

    def check(self, where: str, own: Row, shown: Row | None) -> None:
        """Compare the figures of one row, by name."""
        for name, value in own.items():
            found = (shown or {}).get(name, "missing")
            fits = value.fits(found) if isinstance(value, Lag | State) else None
            self.found.note(f"{where}: {name}", found, value, fits=fits)

    def check_names(self, where: str, own: Iterable[Any], shown: Iterable[Any]) -> None:
        """Compare the names that a list has."""
        self.check(where, {"names": sorted(own)}, {"names": sorted(shown)})

    def check_rows(self, where: str, own: Rows, shown: Rows, *, whole: bool = False) -> None:
        """Compare several rows; `whole`: there may be no others."""
        if whole:
            self.check_names(where, own, shown)
        for key, row in own.items():
            self.check(f"{where} {key}", row, shown.get(key))

    def _at(self, topic: str, channel: str = "") -> dict[str, Any]:
        """Return the figures of a topic or channel at each node that has it."""
        nodes = {node: each[topic] for node, each in self.nodes.items() if topic in each}
        return {node: t.channels[channel] for node, t in nodes.items()} if channel else nodes

    def _timed(self, own: ChannelFigures) -> dict[str, Any]:
        return {"lag_seconds": Lag(own.oldest_at, self.since)}

    # nsqadmin

    async def nsqadmin(self) -> None:
        """Compare what nsqadmin shows, until it agrees or the time is over."""
        deadline = time.monotonic() + AGREE_SECONDS
        while True:
            self.found = Comparison()
            for look in (self._nsq_api, self._own_api, self._pages):
                await asyncio.to_thread(look)
            if not self.found.wrong or time.monotonic() > deadline:
                return
            await asyncio.sleep(POLL_SECONDS)

    def _nsq_api(self) -> None:
        ask = self.site.from_nsqadmin
        self.check_names("/api/topics", self.totals, ask("/api/topics")["topics"] or ())
        for topic, figures in self.totals.items():
            where = f"/api/topics/{topic}"
            shown = ask(where)
            self.check(where, nsq_topic(figures), shown)
            parts = {node: nsq_topic(at) for node, at in self._at(topic).items()}
            self.check_rows(f"{where} at", parts, by(shown["nodes"], "node"))
            channels = {channel: nsq(own) for channel, own in figures.channels.items()}
            self.check_rows(where, channels, by(shown["channels"], "channel_name"), whole=True)
            for channel in channels:
                self._nsq_channel(topic, channel)
        counted = ask("/api/counter")["stats"]
        counters: dict[str, Row] = {}
        for node, at_node in self.nodes.items():
            places = {(t, c): own for t, f in at_node.items() for c, own in f.channels.items()}
            counters |= {
                f"{topic}:{channel}:{node}": {"message_count": own.messages}
                for (topic, channel), own in places.items()
            }
            row = {
                "total_messages": sum(each.messages for each in at_node.values()),
                "total_clients": sum(own.clients for own in places.values()),
            }
            self.check(f"/api/nodes/{node}", row, ask(f"/api/nodes/{node}"))
        self.check_rows("/api/counter", counters, counted, whole=True)

    def _nsq_channel(self, topic: str, channel: str) -> None:
        where = f"/api/topics/{topic}/{channel}"
        shown, at = self.site.from_nsqadmin(where), self._at(topic, channel)
        self.check(where, nsq(self.channels[topic, channel][0]), shown)
        own = {node: nsq(figures) for node, figures in at.items()}
        self.check_rows(f"{where} at", own, by(shown["nodes"], "node"))
        for node, figures in at.items():
            clients = [one for one in shown["clients"] or () if one["node"] == node]
            listed = {name: sum(one[name] for one in clients) for name in CLIENT}
            own_client = self.clients[node, topic, channel] if figures.clients else {}
            if channel == LATE_CHANNEL:
                # What the client drops because its time is over, the handlers do not see.
                own_client.pop("message_count", None)
            self.check(
                f"{where}: the client at {node}",
                own_client | {"clients": figures.clients},
                listed | {"clients": len(clients)},
            )

    def _own_api(self) -> None:
        ask = self.site.from_nsqadmin
        own = sums(self.totals) | dict.fromkeys(RATES, 0.0)
        own |= {"nodes": len(self.nodes), "nodes_up": len(self.nodes)}
        self.check("/api/v2/overview", own, ask("/api/v2/overview")["totals"])
        topics = {topic: topic_row(figures) for topic, figures in self.totals.items()}
        shown = by(ask("/api/v2/topics?limit=1000")["rows"], "topic")
        self.check_rows("/api/v2/topics", topics, shown, whole=True)
        for topic in self.totals:
            parts = by(ask(f"/api/v2/topics/{topic}")["nodes"], "node", part="topic")
            rows = {
                node: {"messages": at.messages, "depth": at.depth, "paused": at.paused}
                for node, at in self._at(topic).items()
            }
            self.check_rows(f"/api/v2/topics/{topic} at", rows, parts)
        channels = {
            key: channel_row(own)
            | {"nodes": figures.nodes, "topic_paused": figures.paused}
            | self._timed(own)
            | {"state": State(own, self.since)}
            for key, (own, figures) in self.channels.items()
        }
        shown = by(ask("/api/v2/channels?limit=1000")["rows"], "topic", "channel")
        self.check_rows("/api/v2/channels", channels, shown)
        for topic, channel in self.channels:
            where = f"/api/v2/topics/{topic}/{channel}"
            parts = by(ask(where)["nodes"], "node", part="channel")
            rows = {node: channel_row(at) for node, at in self._at(topic, channel).items()}
            self.check_rows(f"{where} at", rows, parts)
        is_up = {"draining": False, "health": "OK", "state": "up", "in_rate": 0.0, "out_rate": 0.0}
        nodes = {node: sums(figures) | is_up for node, figures in self.nodes.items()}
        shown = by(ask("/api/v2/nodes")["rows"], "address")
        self.check_rows("/api/v2/nodes", nodes, shown, whole=True)

    def _pages(self) -> None:
        """Compare the tables of nsqadmin's pages."""
        topics = {
            f"/topics/{t}": labelled(topic_row(f), TOPIC_LABELS) for t, f in self.totals.items()
        }
        channels = {
            f"/topics/{topic}/{channel}": labelled(asdict(own), CHANNEL_LABELS)
            for (topic, channel), (own, _) in self.channels.items()
        }
        nodes = {f"/nodes/{n}": labelled(sums(f), NODE_LABELS) for n, f in self.nodes.items()}
        for path, own in (
            ("/topics?limit=1000", topics),
            ("/topics?view=channels&limit=1000", channels),
            ("/nodes", nodes),
        ):
            shown = grid(self.site.page(path))
            self.check_rows(f"page {path}", own, shown)
            self.check(f"page {path}", {"rows": len(own)}, {"rows": len(shown)})

    # The programs

    async def top(self) -> None:
        """Compare what `sparq top --once` shows."""
        document = (await self.site.sparq("top", "--once", "--json")).json
        self.check("top", {"nsqds": len(self.nodes), "errors": {}, "gone": {}}, document)
        rows = {
            key: {name: getattr(own, name) for name in (*SUMMED, "depth", "paused")}
            | dict.fromkeys(RATES, 0.0)
            | {"topic_paused": figures.paused, "state": State(own, self.since, figures.paused)}
            | self._timed(own)
            for key, (own, figures) in self.channels.items()
        }
        for topic, figures in self.totals.items():
            if figures.depth or not figures.channels:
                state = "paused" if figures.paused else "ok" if figures.channels else "no channel"
                rows[topic, ""] = {"depth": figures.depth, "paused": figures.paused}
                rows[topic, ""] |= {"in_rate": 0.0, "state": state}
        self.check_rows("top", rows, by(document["rows"], "topic", "channel"), whole=True)

    async def printed(self) -> None:
        """Compare the tables that `sparq top --once` and `sparq admin list` print."""
        ran = await self.site.sparq("top", "--once")
        channels = {
            key: labelled(asdict(own), TOP_LABELS) | {"PAUSED": "yes" if own.paused else "no"}
            for key, (own, _) in self.channels.items()
        }
        self.check_rows("top prints", channels, by(printed(ran.output), "TOPIC", "CHANNEL"))
        ran = await self.site.done("list")
        topics = {t: labelled(topic_row(f), LIST_LABELS) for t, f in self.totals.items()}
        self.check_rows("list prints", topics, by(printed(ran.output), "TOPIC"))

    async def listed(self, pages: int) -> None:
        """Compare what `sparq admin list` shows: all topics, `pages` topics and channels, nodes."""
        topics = {
            topic: {"channels": len(figures.channels), "waiting": waiting(figures)}
            | {"messages": figures.messages, "paused": figures.paused, "nsqds": figures.nodes}
            for topic, figures in self.totals.items()
        }
        nodes = {
            node: {"topics": len(figures), "waiting": sums(figures)["waiting"], "state": "up"}
            for node, figures in self.nodes.items()
        }
        await asyncio.gather(
            self._list(topics, "topic"),
            self._list(nodes, "address", "--nodes"),
            *(self._list_topic(topic) for topic in [*self.totals][:pages]),
            *(self._list_channel(*place) for place in [*self.channels][:pages]),
        )

    async def _list(self, own: Rows, name: str, *words: str) -> None:
        """Compare the rows of one call of `sparq admin list`, by the figure of this name."""
        ran = await self.site.done("list", *words, "--json")
        self.check_rows(f"list {' '.join(words)}", own, by(ran.json["rows"], name), whole=True)

    async def _list_topic(self, topic: str) -> None:
        figures = self.totals[topic]
        rows = {
            channel: row_of(own)
            | {"topic_paused": figures.paused, "nsqds": figures.nodes}
            | {
                "lag_seconds": Lag(own.oldest_at, self.since),
                "state": State(own, self.since, figures.paused),
            }
            for channel, own in figures.channels.items()
        }
        await self._list(rows, "channel", topic)

    async def _list_channel(self, topic: str, channel: str) -> None:
        paused = {node: at.paused for node, at in self._at(topic).items()}
        rows = {
            node: row_of(own)
            | {"topic_paused": paused[node], "lag_seconds": Lag(own.oldest_at, self.since)}
            for node, own in self._at(topic, channel).items()
        }
        await self._list(rows, "nsqd", topic, channel)


def labelled(row: Row, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return figures as people read them, by heading."""
    return {label: f"{row[name]:,}" for label, name in labels.items()}


def row_of(own: ChannelFigures) -> dict[str, Any]:
    """Return the figures that do not change while everything stands still."""
    row = asdict(own)
    del row["oldest_at"]
    return row


def nsq(own: ChannelFigures) -> dict[str, Any]:
    """Return the figures of a channel by the names of NSQ's API."""
    return {theirs: getattr(own, name) for theirs, name in NSQ_CHANNEL.items()}


def nsq_topic(own: TopicFigures) -> dict[str, Any]:
    """Return the figures of a topic by the names of NSQ's API."""
    return {"depth": own.depth, "message_count": own.messages, "paused": own.paused}


def channel_row(own: ChannelFigures) -> dict[str, Any]:
    """Return the figures of a row of nsqadmin's API."""
    return row_of(own) | dict.fromkeys(RATES, 0.0)


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
