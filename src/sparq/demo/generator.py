"""Generates a realistic day of a web site: people, declared crawlers, and planted fraud.

Pure and deterministic: the same seed and size give the same bytes. A visitor is an address and a
user agent. `generate` returns the lines ordered by time and, separately and only for the report,
which visitors were planted with which reasons. The lines themselves do not show it.

People are not made to suit the rules that look for fraud: some have a warm cache, some open many
tabs, some reload, some share an address; and some planted visitors are too inconspicuous to be
found.

A plant (`PLANTED`) gets the world and the second at which it begins, and returns its visitor, its
reasons and its requests. The reasons are the intention of its author, not what the rules of the
analysis would find: every twenty-fifth makes so few requests that no rule can detect it (`_count`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import accumulate

from sparq.demo import website
from sparq.demo.website import HOST, Browser, Hit, SiteModel, Visitor

DECLARED, UNDECLARED, BURST, BARE, REPEATS = (
    "declared_robot",
    "undeclared_robot",
    "burst",
    "no_resources",
    "repeats",
)
"""Why a visitor was planted, in the words of `sparq.pipeline.sessions.rules.REASONS`; a test
compares both. The pipeline imports this package, so this package cannot import them from there."""

Planted = tuple[Visitor, frozenset[str], list[Hit]]
Plant = Callable[[SiteModel, float], Planted]
TIMID_EVERY = 25


def _count(world: SiteModel, low: int, high: int) -> int:
    """The number of requests of a plant; one in TIMID_EVERY makes only 3 to 5."""
    world.pretenders += 1
    timid = world.pretenders % TIMID_EVERY == 0
    return world.rng.randint(3, 5) if timid else world.rng.randint(low, high)


def _moments(world: SiteModel, start: float, count: int, mean_s: float) -> list[float]:
    """Times with random gaps, `mean_s` on average."""
    return list(
        accumulate((world.rng.expovariate(1 / mean_s) for _ in range(count - 1)), initial=start)
    )


def _ticks(world: SiteModel, start: float, count: int, gap_s: float) -> list[float]:
    """Times with nearly equal gaps."""
    jitter = gap_s * 0.06
    return [start + at * gap_s + world.rng.uniform(-jitter, jitter) for at in range(count)]


def _bare(world: SiteModel, visitor: Visitor, times: list[float]) -> list[Hit]:
    """Pages without the resources that a browser would load with them."""
    pages = [world.any_page() for _ in times]
    return [
        world.hit(visitor, at, page.path, page.size) for at, page in zip(times, pages, strict=True)
    ]


def crawler(world: SiteModel, start: float) -> Planted:
    """A declared robot: it reads robots.txt and requests pages slowly."""
    visitor = world.population.robot()
    times = _moments(world, start, world.rng.randint(5, 160), world.rng.uniform(8, 90))
    hits = [world.hit(visitor, start - 2, "/robots.txt", 310), *_bare(world, visitor, times)]
    return visitor, frozenset({DECLARED}), hits


def hidden_crawler(world: SiteModel, start: float) -> Planted:
    """A robot that claims to be a browser, but reads robots.txt and loads no images."""
    visitor = world.population.pretender()
    times = _moments(world, start, _count(world, 9, 80), world.rng.uniform(6, 60))
    hits = [world.hit(visitor, start - 2, "/robots.txt", 310), *_bare(world, visitor, times)]
    return visitor, frozenset({UNDECLARED, BARE}), hits


def headless(world: SiteModel, start: float) -> Planted:
    """A real browser controlled by a program: it loads everything, at regular intervals."""
    visitor = world.population.pretender()
    browser = Browser(world, visitor)
    for second in _ticks(world, start, _count(world, 20, 70), world.rng.uniform(4, 25)):
        browser.open(world.any_page(), second, HOST + "/")
    return visitor, frozenset({UNDECLARED}), browser.hits


def scraper(world: SiteModel, start: float) -> Planted:
    """A robot that requests only pages, at irregular intervals."""
    visitor = world.population.pretender()
    times = _moments(world, start, _count(world, 9, 70), world.rng.uniform(8, 70))
    return visitor, frozenset({BARE}), _bare(world, visitor, times)


def flood(world: SiteModel, start: float) -> Planted:
    """A robot that requests as many pages as it can, all at once."""
    visitor = world.population.pretender()
    times = _moments(world, start, _count(world, 60, 150), world.rng.uniform(0.06, 0.22))
    return visitor, frozenset({BURST, BARE}), _bare(world, visitor, times)


def clicker(world: SiteModel, start: float) -> Planted:
    """A visitor that clicks one offer again and again, for money or to harm; half use a browser."""
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
"""The plants, and the number of each in 200,000 clicks."""


DAY = datetime(2026, 3, 2, tzinfo=UTC)  # a Monday; fixed, so the output does not depend on today
# Relative traffic of each hour: quiet at night, a peak at noon, a higher one in the evening.
HOURS = (18, 11, 8, 6, 6, 9, 18, 34, 52, 63, 68, 70, 78, 74, 68, 66, 68, 74, 82, 90, 96, 88, 62, 36)
SIZE = 200_000
DAMAGED_SHARE = 0.0005


@dataclass(slots=True)
class Generated:
    """A day of clicks.

    Attributes:
        lines: the messages, in order of time.
        labels: (address, user agent) -> the reasons for which the visitor was planted.
        damaged: number of lines that cannot be read.
    """

    lines: list[bytes]
    labels: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    damaged: int = 0


def generate(size: int = SIZE, seed: int = 1) -> Generated:
    """Generate `size` clicks of one day; a fixed share of them is planted."""
    rng = random.Random(seed)  # noqa: S311 - a made-up day, not a secret
    world = website.SiteModel(rng)
    hits: list[Hit] = []
    labels: dict[tuple[str, str], frozenset[str]] = {}
    for plant in _plants(size):
        visitor, reasons, made = plant(world, _second(rng))
        labels[visitor.key] = reasons
        hits += made
    while len(hits) < size:
        hits += _person(world, _second(rng))
    hits = sorted(hits[:size], key=lambda hit: hit.second)  # may cut off the last visit
    return _written(hits, labels, rng)


def _plants(size: int) -> Iterator[Plant]:
    for plant, count in PLANTED:
        for _ in range(max(1, round(count * size / SIZE))):
            yield plant


def _second(rng: random.Random) -> float:
    """A random second of the day, weighted by the traffic of its hour."""
    hour: int = rng.choices(range(24), HOURS)[0]
    return hour * 3600 + rng.random() * 3600


def _person(world: website.SiteModel, start: float) -> list[Hit]:
    """One visit of a person with a browser."""
    rng = world.rng
    browser = website.Browser(world, world.population.person(), warm=rng.random() < 0.1)
    second, referer = start, rng.choice(website.ELSEWHERE)
    page = world.page() if referer != "-" or rng.random() < 0.5 else world.pages[0]
    manner = rng.random()
    for _ in range(1 + min(int(rng.expovariate(1 / 3.4)), 60)):
        browser.open(page, second, referer)
        if manner < 0.04:  # opens many tabs from one page
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
    """A request in the form in which its server logs it."""
    return _FORMS[hit.visitor.log](hit)


def _as_combined(hit: Hit) -> str:
    at = _time(hit).strftime("%d/%b/%Y:%H:%M:%S +0000")
    visitor = hit.visitor
    return (
        f'{visitor.address} - - [{at}] "{hit.method} {hit.path} HTTP/1.1" {hit.status} '
        f'{hit.size or "-"} "{hit.referer}" "{visitor.user_agent}"'
    )


def _as_extended(hit: Hit) -> str:
    """The combined form as many nginx sites extend it: forwarded address, and request time."""
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
    """Damage a line: cut it off in the middle, or remove or break a quote or a field."""
    if line.startswith("{"):
        return line[: rng.randint(1, len(line) - 1)]
    ways = (
        lambda: line[: rng.randint(20, line.index('" ') - 1)],
        lambda: line.removesuffix('"') if line.endswith('"') else line.replace('"', "", 1),
        lambda: line.replace("[", "", 1),
        lambda: line.replace('" 200 ', '" ok ').replace('" 304 ', '" ? ') + '"',
    )
    return rng.choice(ways)()
