"""The script's own count: what was published and handled, and the figures that follow from it.

1. It knows only acknowledgements, deliveries, the answers that handlers gave, and what the operator
   did. It asks no daemon.
2. A node's counters begin at 0 with each of its lives; what waits there does not.
3. A message is known by its number, its delivery by nsqd, id and attempts.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from sparq.client import Message

DEAD, REDRIVE = ".dead", "redrive"

Place = tuple[str, str]
"""A topic and one of its channels."""


class Kind(Enum):
    """What the handlers do with a message."""

    PLAIN = b"plain"
    AGAIN = b"again"
    """Requeued once by each channel."""
    LATE = b"late"
    """Not answered in time at its first delivery, in the channel that is late."""
    POISON = b"poison"
    """Requeued each time, in the channel whose handler is broken."""
    HELD = b"held"
    """Never answered."""
    LATER = b"later"
    """Requeued for an hour."""


class Answer(Enum):
    """How a handler answered a delivery."""

    FINISHED, REQUEUED, PUT_OFF, NONE = range(4)


class Post(NamedTuple):
    """A publish that an nsqd acknowledged; `life`: which of the node's lives it was."""

    node: str
    life: int
    at: float
    deferred: bool
    kind: Kind


class Delivery(NamedTuple):
    """One call of a handler."""

    node: str
    life: int
    id: str
    attempts: int
    number: int
    answer: Answer
    at: float


class Extra(NamedTuple):
    """Messages that nsqd itself or the operator published: letters, redriven and moved ones."""

    node: str
    life: int
    topic: str
    channel: str
    """The only channel that got them; "": all."""
    messages: int


@dataclass(slots=True)
class ChannelFigures:
    """The expected figures of a channel at one node."""

    messages: int = 0
    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    requeued: int = 0
    timed_out: int = 0
    clients: int = 0
    paused: bool = False
    oldest_at: float = float("inf")
    """When the oldest waiting message was published, in seconds since 1970."""

    def add(self, other: ChannelFigures) -> None:
        """Add the figures of another node."""
        for name in ("messages", "depth", "in_flight", "deferred", "requeued", "timed_out"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.clients += other.clients
        self.paused |= other.paused
        self.oldest_at = min(self.oldest_at, other.oldest_at)


@dataclass(slots=True)
class TopicFigures:
    """The expected figures of a topic at one node, or summed over all."""

    messages: int = 0
    depth: int = 0
    paused: bool = False
    nodes: int = 1
    channels: dict[str, ChannelFigures] = field(default_factory=dict)

    def add(self, other: TopicFigures) -> None:
        """Add the figures of another node."""
        self.messages += other.messages
        self.depth += other.depth
        self.paused |= other.paused
        self.nodes += other.nodes
        for name, figures in other.channels.items():
            self.channels.setdefault(name, ChannelFigures()).add(figures)


Figures = dict[str, TopicFigures]
"""A node's figures by topic."""


@dataclass(slots=True)
class Comparison:
    """How many figures were compared, and those that differ from the book."""

    compared: int = 0
    wrong: list[str] = field(default_factory=list)

    def note(self, what: str, shown: object, own: object, *, fits: bool | None = None) -> None:
        """Note a figure that a program has shown; `fits`: whether it is right, if not equal."""
        self.compared += 1
        if not (shown == own if fits is None else fits):
            self.wrong.append(f"{what} {shown}, own count {own}")


@dataclass(slots=True)
class Findings:
    """The results of a day.

    Attributes:
        tried: what was tried with removed tokens.
        twice: what was handled more often than delivered.
        unauthorised: what of it had an effect.
        came_back: topics that came back after their deletion.
        reports: what the operator's own programs reported.
        figures: what nsqadmin and the programs show in the end.
    """

    acknowledged: int = 0
    handled: int = 0
    tried: int = 0
    twice: list[str] = field(default_factory=list)
    unauthorised: list[str] = field(default_factory=list)
    came_back: list[str] = field(default_factory=list)
    reports: Comparison = field(default_factory=Comparison)
    figures: Comparison = field(default_factory=Comparison)

    def note_attempt(self, what: str, *, effect: bool) -> None:
        """Count one attempt with a removed token."""
        self.tried += 1
        if effect:
            self.unauthorised.append(what)

    def violations(self) -> list[str]:
        """Return each violation."""
        own = [*self.twice, *self.unauthorised, *self.came_back]
        return [*own, *self.reports.wrong, *self.figures.wrong]

    def line(self) -> str:
        """Return the results in one line."""
        compared = self.reports.compared + self.figures.compared
        wrong = len(self.reports.wrong) + len(self.figures.wrong)
        return (
            f"acknowledged {self.acknowledged:,} · handled {self.handled:,} · handled more often "
            f"than delivered {len(self.twice):,} · attempts with removed tokens {self.tried:,}, of "
            f"which had an effect {len(self.unauthorised):,} · topics that came back "
            f"{len(self.came_back):,} · "
            f"figures {compared:,}, other than the script's own count {wrong:,}"
        )


class Book:
    """What the script has counted.

    Attributes:
        lives: how often each node was started, by its TCP address.
        places: the nodes that have each topic.
        channels: the channels of each topic.
        posts: the acknowledged publishes of each topic, by number.
        deliveries: the calls of the handlers of each channel.
        joined: how many deliveries a channel had before its present consumer.
        limits: `max_attempts` of channels that have it.
        removed: messages that the operator took out of a node's channel.
        twice: deliveries of the same attempt, or after a finish.
        withheld: numbers that a paused topic keeps from its channels, by topic.
        doubtful: publishes that may be stored twice.
    """

    def __init__(self, nodes: list[str]) -> None:
        self.lives = dict.fromkeys(nodes, 1)
        self.places: dict[str, set[str]] = {}
        self.channels: dict[str, list[str]] = {}
        self.posts: dict[str, dict[int, Post]] = defaultdict(dict)
        self.deliveries: dict[Place, list[Delivery]] = defaultdict(list)
        self.extras: list[Extra] = []
        self.limits: dict[Place, int] = {}
        self.removed: Counter[tuple[str, str, str]] = Counter()
        self.withheld: dict[str, set[int]] = {}
        self.paused: set[Place] = set()
        self.joined: dict[Place, int] = {}
        self.connections: dict[Place, list[str]] = {}
        self.twice: list[str] = []
        self.doubtful = 0
        self._next = 0
        self._seen: dict[tuple[Place, str, str], int] = {}
        self._finished: dict[Place, set[tuple[str, str]]] = defaultdict(set)
        self._finished_numbers: dict[Place, set[int]] = defaultdict(set)

    # What happens

    def body(self, kind: Kind) -> tuple[int, bytes]:
        """Return the number and the body of a new message."""
        self._next += 1
        return self._next, b"%d %s" % (self._next, kind.value)

    def published(self, topic: str, number: int, kind: Kind, node: str, *, deferred: bool) -> None:
        """Note an acknowledged publish."""
        post = Post(node, self.lives[node], time.time(), deferred, kind)
        self.posts[topic][number] = post
        self.places.setdefault(topic, set()).add(node)

    def delivered(self, place: Place, message: Message) -> tuple[int, Kind]:
        """Check a delivery; return its number and kind."""
        first, _, kind = message.body.partition(b" ")
        number = int(first)
        key = place, message.nsqd, message.id
        if message.attempts <= self._seen.get(key, 0):
            self.twice.append(f"{place} {number}: attempt {message.attempts} handled twice")
        if key[1:] in self._finished[place]:
            self.twice.append(f"{place} {number}: handled after its FIN")
        self._seen[key] = message.attempts
        return number, Kind(kind)

    def answered(self, place: Place, message: Message, number: int, answer: Answer) -> None:
        """Note how a handler has answered."""
        node = message.nsqd
        which = node, self.lives[node], message.id, message.attempts, number
        self.deliveries[place].append(Delivery(*which, answer, time.time()))
        if answer is Answer.FINISHED:
            self._finished[place].add((node, message.id))
            self._finished_numbers[place].add(number)

    def replayed(self, place: Place) -> None:
        """Note that a channel was moved to its beginning: it delivers everything again."""
        self._finished[place].clear()
        self._finished_numbers[place].clear()
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] != place}

    def carried(self, topic: str, source: str, target: str) -> int:
        """Note that a topic has moved, once all its messages are finished; return how many."""
        total = 0
        for channel in self.channels[topic]:
            posts = self.posts[topic]
            ids = {
                each.id
                for each in self.deliveries[topic, channel]
                if each.node == target and posts[each.number].node == source
            }
            self.extras.append(Extra(target, self.lives[target], topic, channel, len(ids)))
            total += len(ids)
        self.places[topic].discard(source)
        return total

    # What follows from it

    def unfinished(self, place: Place, kinds: tuple[Kind, ...] = ()) -> set[int]:
        """Return the numbers that a channel has not finished; `kinds`: only of these."""
        posts = self.posts[place[0]]
        wanted = {n for n, post in posts.items() if not kinds or post.kind in kinds}
        return wanted - self._finished_numbers[place]

    def ghosts(self) -> int:
        """Return how many messages were handled that no nsqd has acknowledged."""
        return sum(
            each.number not in self.posts[topic]
            for (topic, _), deliveries in self.deliveries.items()
            for each in deliveries
        )

    def finished_twice(self) -> int:
        """Return how many messages a channel has finished more than once, under two ids."""
        found = 0
        for place, ids in self._finished.items():
            numbers = {
                (each.node, each.id): each.number
                for each in self.deliveries[place]
                if each.answer is Answer.FINISHED
            }
            found += len(ids) - len({numbers[key] for key in ids})
        return found

    def letters(self, node: str, place: Place) -> list[Delivery]:
        """Return the last deliveries of a channel's messages that became dead letters at a node."""
        most = self.limits.get(place, 0)
        return [
            each
            for each in self.deliveries[place]
            if most and each.node == node and each.attempts == most
            if each.answer is Answer.REQUEUED
        ]

    def _letters_at(self, node: str, place: Place) -> list[float]:
        """Return when the letters that wait in a channel of a dead-letter topic were made."""
        sources = [of for of in self.limits if of[0] + DEAD == place[0]]
        times = sorted(each.at for of in sources for each in self.letters(node, of))
        return times[self.removed[node, *place] :]

    def finished_count(self, place: Place) -> int:
        """Return how many messages a channel has finished."""
        return len(self._finished_numbers[place])

    def figures(self, node: str) -> Figures:
        """Return the expected figures of a node."""
        return {
            topic: self._topic(node, topic)
            for topic, nodes in sorted(self.places.items())
            if node in nodes
        }

    def of_client(self, node: str, place: Place) -> dict[str, int]:
        """Return the expected figures of the present consumer's connection to a node."""
        life = self.lives[node]
        own = self.deliveries[place][self.joined.get(place, 0) :]
        answers = Counter(each.answer for each in own if (each.node, each.life) == (node, life))
        return {
            "message_count": answers.total(),
            "finish_count": answers[Answer.FINISHED],
            "requeue_count": answers[Answer.REQUEUED] + answers[Answer.PUT_OFF],
        }

    def totals(self) -> Figures:
        """Return the expected figures of the cluster."""
        found: Figures = {}
        for node in self.lives:
            for topic, figures in self.figures(node).items():
                if topic in found:
                    found[topic].add(figures)
                else:
                    found[topic] = figures
        return found

    def _topic(self, node: str, topic: str) -> TopicFigures:
        life, posts = self.lives[node], self.posts[topic]
        here = {n: post for n, post in posts.items() if post.node == node}
        withheld = self.withheld.get(topic, set()) & here.keys()
        extras = [e for e in self.extras if (e.node, e.topic) == (node, topic)]
        found = TopicFigures(
            sum(post.life == life for post in here.values())
            + sum(each.messages for each in extras if each.life == life),
            len(withheld) if self.channels[topic] else len(here),
            (topic, "") in self.paused,
        )
        seen = {n: post for n, post in here.items() if n not in withheld}
        for channel in self.channels[topic]:
            mine = [each for each in extras if each.channel in ("", channel)]
            found.channels[channel] = self._channel(node, (topic, channel), seen, mine)
        return found

    def _channel(
        self, node: str, place: Place, seen: dict[int, Post], extras: list[Extra]
    ) -> ChannelFigures:
        life = self.lives[node]
        found = ChannelFigures(paused=place in self.paused)
        found.clients = self.connections.get(place, []).count(node)
        found.messages = sum(post.life == life for post in seen.values())
        found.messages += sum(each.messages for each in extras if each.life == life)
        last: dict[str, Delivery] = {}
        for each in self.deliveries[place]:
            if each.node != node:
                continue
            before = last.get(each.id)
            # After a replay, attempts begin at 1 again.
            if each.life == life and before is not None and each.attempts > before.attempts:
                # Each attempt but the last was returned, by our REQ or by a timeout.
                returns = each.attempts - before.attempts
                found.timed_out += returns - (before.answer is not Answer.NONE)
            last[each.id] = each
            is_returned = each.answer in (Answer.REQUEUED, Answer.PUT_OFF)
            found.requeued += is_returned and each.life == life
        found.in_flight = sum(each.answer is Answer.NONE for each in last.values())
        put_off = sum(each.answer is Answer.PUT_OFF for each in last.values())
        deferred = sum(post.deferred for post in seen.values())
        found.deferred = put_off + deferred
        gone = len([1 for at, _ in self._finished[place] if at == node])
        gone += len(self.letters(node, place)) + self.removed[node, *place]
        arrived = len(seen) + sum(each.messages for each in extras)
        done = {each.number for each in last.values() if each.answer is not Answer.REQUEUED}
        done |= {each.number for each in self.letters(node, place)}
        waits = (post.at for n, post in seen.items() if n not in done and not post.deferred)
        found.oldest_at = min((*waits, *self._letters_at(node, place)), default=found.oldest_at)
        found.depth = arrived - gone - found.in_flight - found.deferred
        return found
