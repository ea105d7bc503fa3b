"""A believable site's day, as its web server would log it: people, crawlers, and planted fraud.

Deterministic: the same count, seed and start give the same bytes. The labels (who was planted, and
what is true of them) are kept apart from the lines and never travel with them.

1. People come by a day's rhythm, from somewhere, read a few pages at their own pace, and their
   browsers load what a page is made of: less of it when it is in the cache, nothing twice in a row.
2. Some people are awkward: an office behind one address, twenty tabs opened at once from a list,
   a reload out of impatience, a visit that ends with its first page.
3. Fraud does what fraud does, not what a rule looks for: numbers and paces are drawn, not set.
"""

from __future__ import annotations

import heapq
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sparq.pipeline.site import (
    BROWSERS,
    CRAWLERS,
    PAGES,
    RESOURCES,
    SHARED,
    SOURCES,
    UNREADABLE,
    page_images,
)

DAY_S = 86_400
CLICKS_A_SESSION = 24
"""About how many lines one person's visit leaves."""

JSON_SHARE = 0.2
CLICKS_AN_UNREADABLE = 10_000
START = datetime(2026, 3, 3, tzinfo=UTC)

Hit = tuple[float, str, int, int, str]
"""(second of the day, path, status, bytes, referer)"""


@dataclass
class Visitor:
    """Somebody with an address and a browser."""

    address: str
    user_agent: str
    cache: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Planted:
    """A visitor that is no ordinary person, and all that is true of them."""

    visitor: Visitor
    reasons: list[str]


class Generator:
    """One day of clicks.

    Args:
        count: how many lines, at least 1.
        seed: of everything that is drawn.
        start: the day's first instant, with its time zone.
    Attributes:
        unreadable: how many of the lines are broken.
    """

    def __init__(self, count: int, seed: int, start: datetime = START) -> None:
        self._count = count
        self._start = start
        self._rng = random.Random(seed)  # noqa: S311 - repeatable on purpose, guards nothing
        self._seen: set[str] = set()
        self._planted: list[Planted] = []
        self.unreadable = count // CLICKS_AN_UNREADABLE

    def lines(self) -> Iterator[bytes]:
        """The lines in the order of their time."""
        hits: list[tuple[float, int, Visitor, Hit]] = []
        for visitor, walk in self._everybody():
            hits += [(hit[0], len(hits) + at, visitor, hit) for at, hit in enumerate(walk)]
        heapq.heapify(hits)
        ordered = [heapq.heappop(hits) for _ in range(min(len(hits), self._count))]
        every = max(1, self._count // (self.unreadable + 1))
        for number, (_, _, visitor, hit) in enumerate(ordered, 1):
            is_broken = number % every == 0 and number // every <= self.unreadable
            yield self._broken() if is_broken else self._line(visitor, hit)

    def labels(self) -> dict[str, list[str]]:
        """What is true of whom, once the lines are made: "address<TAB>user agent" -> reasons."""
        return {
            f"{one.visitor.address}\t{one.visitor.user_agent}": one.reasons for one in self._planted
        }

    # Who comes

    def _everybody(self) -> Iterator[tuple[Visitor, list[Hit]]]:
        made = 0
        for planted, hits in self._fraud():
            kept = [hit for hit in hits if hit[0] < DAY_S]
            made += len(kept)
            self._planted.append(planted)
            yield planted.visitor, kept
        office = [self._address() for _ in range(20)]
        regulars: list[Visitor] = []
        while made < self._count:
            visitor = self._person(office, regulars)
            hits = self._session(visitor)
            made += len(hits)
            yield visitor, hits

    def _person(self, office: list[str], regulars: list[Visitor]) -> Visitor:
        rng = self._rng
        if regulars and rng.random() < 0.15:
            return rng.choice(regulars)
        address = rng.choice(office) if rng.random() < 0.05 else self._address()
        visitor = Visitor(address, self._browser())
        if rng.random() < 0.2:
            regulars.append(visitor)
        return visitor

    def _fraud(self) -> Iterator[tuple[Planted, list[Hit]]]:
        """Each kind in a number that grows with the size of the day."""
        kinds: tuple[tuple[Callable[[], tuple[Planted, list[Hit]]], int], ...] = (
            (self._crawler, 8_000),
            (self._flood, 10_000),
            (self._scraper, 8_000),
            (self._reader_without_browser, 5_000),
            (self._repeater, 8_000),
        )
        for make, clicks_each in kinds:
            for _ in range(max(1, self._count // clicks_each)):
                yield make()

    # People

    def _session(self, visitor: Visitor) -> list[Hit]:
        rng = self._rng
        now = self._moment()
        page = self._page()
        referer = rng.choice(SOURCES)
        hits = self._view(visitor, now, page, referer)
        awkward = rng.random()
        if awkward < 0.002:
            for _ in range(rng.randint(6, 12)):
                now += rng.uniform(0.4, 1.5)
                hits += self._view(visitor, now, self._page(), page)
            return hits
        for _ in range(self._further_pages()):
            now += min(1_500.0, rng.lognormvariate(3.2, 0.9) + 2.0)
            following = page if rng.random() < 0.03 else self._page()
            hits += self._view(visitor, now, following, page)
            page = following
        return hits

    def _further_pages(self) -> int:
        if self._rng.random() < 0.35:
            return 0
        return min(20, int(self._rng.expovariate(1 / 3.5)) + 1)

    def _view(self, visitor: Visitor, now: float, page: str, referer: str) -> list[Hit]:
        """A page and what its browser loads with it."""
        rng = self._rng
        if rng.random() < 0.01:
            return [(now, f"{page.rstrip('/')}/x{rng.randint(1, 99)}", 404, 512, referer)]
        query = f"?utm_source=mail{rng.randint(1, 4)}" if rng.random() < 0.04 else ""
        hits = [(now, page + query, 200, rng.randint(6_000, 60_000), referer)]
        wanted = [*SHARED, *rng.sample(RESOURCES, 2), *page_images(page)]
        for path in wanted:
            if path in visitor.cache and rng.random() < 0.6:
                continue
            now += rng.uniform(0.01, 0.25)
            known = path in visitor.cache
            visitor.cache.add(path)
            size = 0 if known else rng.randint(800, 120_000)
            hits.append((now, path, 304 if known else 200, size, page))
        return hits

    # Fraud

    def _crawler(self) -> tuple[Planted, list[Hit]]:
        """A search engine's robot that says what it is."""
        rng = self._rng
        visitor = self._new_visitor(rng.choice(CRAWLERS))
        now = self._moment() / 2
        hits: list[Hit] = [(now, "/robots.txt", 200, 310, "-")]
        pace = rng.uniform(2.0, 40.0)
        for _ in range(rng.randint(40, 300)):
            now += rng.expovariate(1 / pace) + 0.5
            hits.append((now, self._page(), 200, rng.randint(6_000, 60_000), "-"))
        return Planted(visitor, ["declared_robot"]), hits

    def _flood(self) -> tuple[Planted, list[Hit]]:
        """Clicks on an offer, faster than a hand: several visits' worth in a minute."""
        rng = self._rng
        visitor = self._new_visitor()
        now = self._moment()
        offers = rng.sample(PAGES, rng.randint(1, 6))
        hits: list[Hit] = []
        for _ in range(rng.randint(1, 3)):
            for _ in range(rng.randint(45, 160)):
                now += rng.expovariate(1 / rng.uniform(0.08, 0.3))
                path = f"{rng.choice(offers)}?ad={rng.randint(1, 9)}"
                hits.append((now, path, 200, rng.randint(6_000, 60_000), rng.choice(SOURCES)))
            now += rng.uniform(120, 1_200)
        return Planted(visitor, ["burst", "repeats", "no_resources"]), hits

    def _scraper(self) -> tuple[Planted, list[Hit]]:
        """A robot that says it is a browser, and copies the site page by page."""
        rng = self._rng
        visitor = self._new_visitor()
        now = self._moment() * 0.7
        pace, jitter = rng.uniform(3.0, 20.0), rng.uniform(0.0, 0.08)
        hits: list[Hit] = []
        if rng.random() < 0.5:
            hits.append((now, "/robots.txt", 200, 310, "-"))
        for page in rng.sample(PAGES, rng.randint(30, len(PAGES))):
            now += pace * (1 + rng.gauss(0, jitter))
            hits.append((now, page, 200, rng.randint(6_000, 60_000), "-"))
        return Planted(visitor, ["undeclared_robot", "no_resources"]), hits

    def _reader_without_browser(self) -> tuple[Planted, list[Hit]]:
        """Visits that look human in their pace, but load nothing that a page is made of."""
        rng = self._rng
        visitor = self._new_visitor()
        now = self._moment()
        hits: list[Hit] = []
        for _ in range(rng.randint(9, 30)):
            now += rng.lognormvariate(3.0, 1.0) + 1.0
            page = self._page()
            hits.append((now, page, 200, rng.randint(6_000, 60_000), rng.choice(SOURCES)))
        return Planted(visitor, ["no_resources"]), hits

    def _repeater(self) -> tuple[Planted, list[Hit]]:
        """One page again and again from a real browser, to push its number."""
        rng = self._rng
        visitor = self._new_visitor()
        now = self._moment()
        page = self._page()
        hits: list[Hit] = []
        for _ in range(rng.randint(25, 80)):
            now += rng.uniform(3.0, 25.0)
            hits += self._view(visitor, now, page, "-")
        return Planted(visitor, ["repeats"]), hits

    # What is drawn

    def _new_visitor(self, user_agent: str = "") -> Visitor:
        return Visitor(self._address(), user_agent or self._browser())

    def _moment(self) -> float:
        """A second of the day: few at night, most in the evening."""
        while True:
            second = self._rng.random() * DAY_S
            hour = second / 3_600
            weight = 0.55 - 0.35 * math.cos((hour - 4) / 24 * 2 * math.pi)
            if self._rng.random() < weight + 0.1 * math.exp(-((hour - 20.5) ** 2) / 3):
                return second

    def _page(self) -> str:
        """A page, the popular ones more often (Zipf's law)."""
        return PAGES[min(len(PAGES) - 1, int(len(PAGES) ** self._rng.random()) - 1)]

    def _browser(self) -> str:
        return self._rng.choice(BROWSERS).format(
            major=self._rng.randint(118, 146), minor=self._rng.randint(0, 7)
        )

    def _address(self) -> str:
        """An address that nobody else has."""
        rng = self._rng
        while True:
            if rng.random() < 0.08:
                address = "2001:db8:" + ":".join(f"{rng.getrandbits(16):x}" for _ in range(6))
            else:
                address = ".".join(str(rng.randint(1, 254)) for _ in range(4))
            if address not in self._seen:
                self._seen.add(address)
                return address

    # As text

    def _line(self, visitor: Visitor, hit: Hit) -> bytes:
        second, path, status, size, referer = hit
        when = self._start + timedelta(seconds=int(second))
        if self._rng.random() < JSON_SHARE:
            click = {
                "time": when.isoformat(),
                "remote_addr": visitor.address,
                "request": f"GET {path} HTTP/1.1",
                "status": status,
                "bytes": size,
                "referer": referer,
                "user_agent": visitor.user_agent,
            }
            return json.dumps(click).encode()
        stamp = when.strftime("%d/%b/%Y:%H:%M:%S %z")
        text = (
            f'{visitor.address} - - [{stamp}] "GET {path} HTTP/1.1" {status} {size}'
            f' "{referer}" "{visitor.user_agent}"'
        )
        return text.encode()

    def _broken(self) -> bytes:
        return self._rng.choice(UNREADABLE).encode()
