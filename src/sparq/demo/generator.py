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

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter

from sparq.demo import website
from sparq.demo.website import HOST, Browser, Hit, SiteModel, Visitor

REASONS = DECLARED, UNDECLARED, BURST, BARE, REPEATS = (
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


def _bare_robot(
    *reasons: str,
    pages: tuple[int, int],
    gap_seconds: tuple[float, float],
    reads_robots_txt: bool = False,
) -> Plant:
    """Return a plant that claims to be a browser, but loads nothing besides pages."""

    def plant(world: SiteModel, start: float) -> Planted:
        visitor = world.population.pretender()
        count = _count(world, *pages)
        times = _moments(world, start, count, world.rng.uniform(*gap_seconds))
        first = [world.hit(visitor, start - 2, "/robots.txt", 310)] if reads_robots_txt else []
        return visitor, frozenset((*reasons, BARE)), first + _bare(world, visitor, times)

    return plant


hidden_crawler = _bare_robot(UNDECLARED, pages=(9, 80), gap_seconds=(6, 60), reads_robots_txt=True)
scraper = _bare_robot(pages=(9, 70), gap_seconds=(8, 70))
flood = _bare_robot(BURST, pages=(60, 150), gap_seconds=(0.06, 0.22))
"""Requests as many pages as it can, all at once."""


def headless(world: SiteModel, start: float) -> Planted:
    """A real browser controlled by a program: it loads everything, at regular intervals."""
    visitor = world.population.pretender()
    browser = Browser(world, visitor)
    for second in _ticks(world, start, _count(world, 20, 70), world.rng.uniform(4, 25)):
        browser.open(world.any_page(), second, HOST + "/")
    return visitor, frozenset({UNDECLARED}), browser.hits


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
# Traffic up to each hour: quiet at night, a peak at noon, a higher one in the evening.
HOURS = tuple(
    accumulate(
        (18, 11, 8, 6, 6, 9, 18, 34, 52, 63, 68, 70, 78, 74, 68, 66, 68, 74, 82, 90, 96, 88, 62, 36)
    )
)
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

    lines: list[bytes] = field(default_factory=list)
    labels: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    damaged: int = 0


def generate(size: int = SIZE, seed: int = 1) -> Generated:
    """Generate `size` clicks of one day; a fixed share of them is planted."""
    rng = random.Random(seed)  # noqa: S311 - a made-up day, not a secret
    world = website.SiteModel(rng)
    day, hits, planted = Generated(), list[Hit](), set[int]()
    for plant in _plants(size):
        visitor, reasons, made = plant(world, _second(rng))
        day.labels[visitor.key] = reasons
        planted.add(id(visitor))
        hits += made
    while len(hits) < size:
        hits += _person(world, _second(rng))
    # May cut off the last visit.
    for hit in sorted(hits[:size], key=attrgetter("second")):
        line = line_of(hit)
        if id(hit.visitor) not in planted and rng.random() < DAMAGED_SHARE:
            line = _damaged(line, rng)
            day.damaged += 1
        day.lines.append(line.encode())
    return day


def _plants(size: int) -> Iterator[Plant]:
    for plant, count in PLANTED:
        for _ in range(max(1, round(count * size / SIZE))):
            yield plant


def _second(rng: random.Random) -> float:
    """A random second of the day, weighted by the traffic of its hour."""
    hour: int = rng.choices(range(24), cum_weights=HOURS)[0]
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


def line_of(hit: Hit) -> str:
    """A request in the form in which its server logs it."""
    return _FORMS[hit.visitor.log](hit)


def _as_combined(hit: Hit) -> str:
    visitor = hit.visitor
    return (
        f"{visitor.address} - - [{_times(int(hit.second))[0]}]"
        f' "{hit.method} {hit.path} HTTP/1.1" {hit.status} {hit.size or "-"} "{hit.referer}"'
        f' "{visitor.user_agent}"'
    )


def _as_extended(hit: Hit) -> str:
    """The combined form as many nginx sites extend it: forwarded address, and request time."""
    return f'{_as_combined(hit)} "-" {0.002 + hit.size / 4e7:.3f}'


def _as_json(hit: Hit) -> str:
    # No text of the site has characters that JSON would escape.
    visitor = hit.visitor
    return (
        f'{{"time": "{_times(int(hit.second))[1]}",'
        f' "remote_addr": "{visitor.address}", "request": "{hit.method} {hit.path} HTTP/2.0",'
        f' "status": {hit.status}, "body_bytes_sent": {hit.size},'
        f' "http_referer": "{hit.referer}", "http_user_agent": "{visitor.user_agent}"}}'
    )


_FORMS = {"combined": _as_combined, "extended": _as_extended, "json": _as_json}


@lru_cache(1)  # clicks are in order of time
def _times(second: int) -> tuple[str, str]:
    """The time in a log and in JSON."""
    log_date, iso_date = _dates(second // 86_400)
    clock = f"{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    return f"{log_date}:{clock} +0000", f"{iso_date}T{clock}+00:00"


@lru_cache
def _dates(days: int) -> tuple[str, str]:
    date = DAY + timedelta(days=days)  # the last visits go on after midnight
    return f"{date:%d/%b/%Y}", f"{date:%Y-%m-%d}"


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
