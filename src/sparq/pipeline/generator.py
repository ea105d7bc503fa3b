"""A believable day of a web site: people, declared crawlers, and planted fraud with its labels.

Pure and deterministic: the same seed and size give the same bytes. A visitor is an address and a
user agent; `generate` returns the lines in order of time and, apart from them, for the report
alone, who was planted with which reason. The lines themselves say nothing of it.

People are not made to suit the rules that look for fraud: some have a warm cache, some open many
tabs, some reload, some share an address; and of the planted some are too weak to be found.

A plant (`PLANTED`) takes the world and the second at which it begins, and returns who it is, its
reasons and its requests. The reasons are what its maker meant it to be, not what the rules of the
analysis would say: every twenty-fifth is so timid that nobody could tell (`_count`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import accumulate

from sparq.pipeline import website
from sparq.pipeline.visits import BARE, BURST, DECLARED, REPEATS, UNDECLARED
from sparq.pipeline.website import HOST, Browser, Hit, Visitor, World

Planted = tuple[Visitor, frozenset[str], list[Hit]]
Plant = Callable[[World, float], Planted]
TIMID_EVERY = 25


def _count(world: World, low: int, high: int) -> int:
    """How many requests it makes; the timid make a handful."""
    world.pretenders += 1
    timid = world.pretenders % TIMID_EVERY == 0
    return world.rng.randint(3, 5) if timid else world.rng.randint(low, high)


def _moments(world: World, start: float, count: int, mean_s: float) -> list[float]:
    """Times with gaps as chance has it, `mean_s` on average."""
    return list(
        accumulate((world.rng.expovariate(1 / mean_s) for _ in range(count - 1)), initial=start)
    )


def _ticks(world: World, start: float, count: int, gap_s: float) -> list[float]:
    """Times with gaps that hardly differ."""
    jitter = gap_s * 0.06
    return [start + at * gap_s + world.rng.uniform(-jitter, jitter) for at in range(count)]


def _bare(world: World, visitor: Visitor, times: list[float]) -> list[Hit]:
    """Pages without anything that a browser would load with them."""
    pages = [world.any_page() for _ in times]
    return [
        world.hit(visitor, at, page.path, page.size) for at, page in zip(times, pages, strict=True)
    ]


def crawler(world: World, start: float) -> Planted:
    """Says that it is a robot, reads robots.txt, walks slowly."""
    visitor = world.population.robot()
    times = _moments(world, start, world.rng.randint(5, 160), world.rng.uniform(8, 90))
    hits = [world.hit(visitor, start - 2, "/robots.txt", 310), *_bare(world, visitor, times)]
    return visitor, frozenset({DECLARED}), hits


def hidden_crawler(world: World, start: float) -> Planted:
    """Pretends to be a browser, but reads robots.txt like a robot and loads no images."""
    visitor = world.population.pretender()
    times = _moments(world, start, _count(world, 9, 80), world.rng.uniform(6, 60))
    hits = [world.hit(visitor, start - 2, "/robots.txt", 310), *_bare(world, visitor, times)]
    return visitor, frozenset({UNDECLARED, BARE}), hits


def headless(world: World, start: float) -> Planted:
    """A real browser, moved by a program: loads everything, at the pace of a clock."""
    visitor = world.population.pretender()
    browser = Browser(world, visitor)
    for second in _ticks(world, start, _count(world, 20, 70), world.rng.uniform(4, 25)):
        browser.open(world.any_page(), second, HOST + "/")
    return visitor, frozenset({UNDECLARED}), browser.hits


def scraper(world: World, start: float) -> Planted:
    """Takes the pages and nothing else, at an uneven pace."""
    visitor = world.population.pretender()
    times = _moments(world, start, _count(world, 9, 70), world.rng.uniform(8, 70))
    return visitor, frozenset({BARE}), _bare(world, visitor, times)


def flood(world: World, start: float) -> Planted:
    """As many pages as it can get, all at once."""
    visitor = world.population.pretender()
    times = _moments(world, start, _count(world, 60, 150), world.rng.uniform(0.06, 0.22))
    return visitor, frozenset({BURST, BARE}), _bare(world, visitor, times)


def clicker(world: World, start: float) -> Planted:
    """Clicks one offer again and again, to be paid or to harm; half of them with a browser."""
    visitor = world.population.pretender()
    offer = next(page for page in world.pages if page.path.startswith("/offers/spring-"))
    with_browser = world.rng.random() < 0.5
    times = _moments(world, start, _count(world, 25, 70), world.rng.uniform(4, 14))
    if with_browser:
        browser = Browser(world, visitor)
        for second in times:
            browser.open(offer, second, "-")
        return visitor, frozenset({REPEATS}), browser.hits
    paths = (f"{offer.path}?cid={world.rng.randrange(10**9)}" for _ in times)
    hits = [world.hit(visitor, at, path, offer.size) for at, path in zip(times, paths, strict=True)]
    return visitor, frozenset({REPEATS, BARE}), hits


PLANTED: tuple[tuple[Plant, int], ...] = (
    (crawler, 110),
    (hidden_crawler, 60),
    (headless, 60),
    (scraper, 60),
    (flood, 50),
    (clicker, 80),
)
"""What is planted, and how much of it in 200,000 clicks."""


DAY = datetime(2026, 3, 2, tzinfo=UTC)  # a Monday; what comes out does not depend on today
# How busy each hour is: quiet at night, a noon peak, a higher one in the evening.
HOURS = (18, 11, 8, 6, 6, 9, 18, 34, 52, 63, 68, 70, 78, 74, 68, 66, 68, 74, 82, 90, 96, 88, 62, 36)
SIZE = 200_000
DAMAGED_SHARE = 0.0005


@dataclass(slots=True)
class Generated:
    """A day of clicks.

    Attributes:
        lines: the messages, in order of time.
        labels: (address, user agent) -> the reasons for which it was planted.
        damaged: how many lines cannot be read.
    """

    lines: list[bytes]
    labels: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    damaged: int = 0


def generate(size: int = SIZE, seed: int = 1) -> Generated:
    """`size` clicks of one day, a fixed share of them planted."""
    rng = random.Random(seed)  # noqa: S311 - a made-up day, not a secret
    world = website.World(rng)
    hits: list[Hit] = []
    labels: dict[tuple[str, str], frozenset[str]] = {}
    for plant in _plants(size):
        visitor, reasons, made = plant(world, _second(rng))
        labels[visitor.key] = reasons
        hits += made
    while len(hits) < size:
        hits += _person(world, _second(rng))
    hits = sorted(hits[:size], key=lambda hit: hit.second)  # the last visit may be cut short
    return _written(hits, labels, rng)


def _plants(size: int) -> Iterator[Plant]:
    for plant, count in PLANTED:
        for _ in range(max(1, round(count * size / SIZE))):
            yield plant


def _second(rng: random.Random) -> float:
    """A second of the day, as busy as its hour is."""
    hour: int = rng.choices(range(24), HOURS)[0]
    return hour * 3600 + rng.random() * 3600


def _person(world: website.World, start: float) -> list[Hit]:
    """One visit of someone with a browser."""
    rng = world.rng
    browser = website.Browser(world, world.population.person(), warm=rng.random() < 0.1)
    second, referer = start, rng.choice(website.ELSEWHERE)
    page = world.page() if referer != "-" or rng.random() < 0.5 else world.pages[0]
    manner = rng.random()
    for _ in range(1 + min(int(rng.expovariate(1 / 3.4)), 60)):
        browser.open(page, second, referer)
        if manner < 0.04:  # opens tab after tab from one page
            second += rng.uniform(0.5, 3)
        elif manner < 0.08 and rng.random() < 0.4:  # is impatient
            second += rng.uniform(2, 20)
            continue
        else:
            second += 2 + rng.lognormvariate(3.1, 1.0)
        referer = website.HOST + page.path
        page = world.page()
    return browser.hits


def _written(
    hits: list[Hit], labels: dict[tuple[str, str], frozenset[str]], rng: random.Random
) -> Generated:
    written = Generated([], labels)
    for hit in hits:
        line = line_of(hit)
        if hit.visitor.key not in labels and rng.random() < DAMAGED_SHARE:
            line = _damaged(line, rng)
            written.damaged += 1
        written.lines.append(line.encode())
    return written


def line_of(hit: Hit) -> str:
    """A request as the log of its server has it."""
    return _FORMS[hit.visitor.log](hit)


def _as_combined(hit: Hit) -> str:
    at = _time(hit).strftime("%d/%b/%Y:%H:%M:%S +0000")
    visitor = hit.visitor
    return (
        f'{visitor.address} - - [{at}] "{hit.method} {hit.path} HTTP/1.1" {hit.status} '
        f'{hit.size or "-"} "{hit.referer}" "{visitor.user_agent}"'
    )


def _as_extended(hit: Hit) -> str:
    """As nginx sites like to extend it: forwarded address, and how long it took."""
    return f'{_as_combined(hit)} "-" {0.002 + hit.size / 4e7:.3f}'


def _as_json(hit: Hit) -> str:
    return json.dumps(
        {
            "time": _time(hit).isoformat(timespec="seconds"),
            "remote_addr": hit.visitor.address,
            "request": f"{hit.method} {hit.path} HTTP/2.0",
            "status": hit.status,
            "body_bytes_sent": hit.size,
            "http_referer": hit.referer,
            "http_user_agent": hit.visitor.user_agent,
        }
    )


_FORMS = {"combined": _as_combined, "extended": _as_extended, "json": _as_json}


def _time(hit: Hit) -> datetime:
    return DAY + timedelta(seconds=int(hit.second))


def _damaged(line: str, rng: random.Random) -> str:
    """What happens to lines: cut off in the middle, a quote or a field lost."""
    if line.startswith("{"):
        return line[: rng.randint(1, len(line) - 1)]
    ways = (
        lambda: line[: rng.randint(20, line.index('" ') - 1)],
        lambda: line.removesuffix('"') if line.endswith('"') else line.replace('"', "", 1),
        lambda: line.replace("[", "", 1),
        lambda: line.replace('" 200 ', '" ok ').replace('" 304 ', '" ? ') + '"',
    )
    return rng.choice(ways)()
