"""The fraud and the robots that the generator plants, each with the reasons that are true of it.

A plant takes the world and the second at which it begins, and returns who it is, its reasons and
its requests. The reasons are what its maker meant it to be, not what the rules of the analysis
would say: every twenty-fifth is so timid that nobody could tell (`_count`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

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
