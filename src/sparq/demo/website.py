"""The simulated site of the generator: its pages, their resources, and its visitors.

All random choices come from the given `random.Random`, so a seed gives the same site and visitors.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

Log = Literal["combined", "extended", "json"]

_BLINK = "AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{}.0.0.0{} Safari/537.36"
_WEBKIT = "AppleWebKit/605.1.15 (KHTML, like Gecko) Version/{}{} Safari/605.1.15"
_GECKO = "Gecko/20100101 Firefox/{}.0{}"
_WINDOWS, _LINUX = "Windows NT 10.0; Win64; x64", "X11; Linux x86_64"
_MAC, _IPHONE = "Macintosh; Intel Mac OS X 10_15_7", "iPhone; CPU iPhone OS 18_6 like Mac OS X"
BROWSERS = tuple(
    f"Mozilla/5.0 ({system}) {engine.format(version, more)}"
    for system, engine, versions, more in (
        (_WINDOWS, _BLINK, range(136, 146), ""),
        (_MAC, _BLINK, range(140, 146), ""),
        ("Linux; Android 10; K", _BLINK, range(136, 146), " Mobile"),
        (_MAC, _WEBKIT, ("17.6", "18.3", "18.6", "26.0", "26.1"), ""),
        (_IPHONE, _WEBKIT, ("17.5", "18.4", "18.5", "18.6", "26.0"), " Mobile/15E148"),
        (f"{_WINDOWS}; rv:140.0", _GECKO, (128, 140, 145, 146), ""),
        (f"{_LINUX}; rv:140.0", _GECKO, (128, 140, 145, 146), ""),
    )
    for version in versions
)
"""User agents of people; robots that hide use one of them, too."""

ROBOTS = (
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
    "Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)",
    "Mozilla/5.0 (compatible; YandexBot/3.0; +http://yandex.com/bots)",
    "Mozilla/5.0 (compatible; AhrefsBot/7.0; +http://ahrefs.com/robot/)",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_5) AppleWebKit/605.1.15 (KHTML, like Gecko)"
    " Version/13.1.1 Safari/605.1.15 (Applebot/0.1; +http://www.apple.com/go/applebot)",
    "Mozilla/5.0 (compatible; Baiduspider/2.0; +http://www.baidu.com/search/spider.html)",
    "DuckDuckBot/1.1; (+http://duckduckgo.com/duckduckbot.html)",
    "facebookexternalhit/1.1 (+http://www.facebook.com/externalhit_uatext.php)",
    "curl/8.5.0",
    "python-requests/2.32.3",
)
"""User agents of programs that declare what they are."""

HOST = "https://www.example.com"
ELSEWHERE = (
    "-",
    "-",
    "https://www.google.com/",
    "https://www.google.com/",
    "https://www.bing.com/",
    "https://duckduckgo.com/",
    "https://news.ycombinator.com/",
    "https://www.reddit.com/",
)
SHARED = (
    ("/static/site.css", 18_231),
    ("/static/fonts/inter.woff2", 46_704),
    ("/static/app.js", 91_442),
    ("/static/vendor.js", 143_870),
    ("/static/logo.svg", 3_120),
    ("/favicon.ico", 1_406),
)
"""Resources that every page loads; a browser caches them for the visit."""


@dataclass(frozen=True, slots=True)
class SitePage:
    """A page of the site, with the images that only this page loads."""

    path: str
    size: int
    images: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Visitor:
    """A visitor, and the form in which its server logs the requests."""

    address: str
    user_agent: str
    log: Log

    @property
    def key(self) -> tuple[str, str]:
        """The identity of a visitor: address and user agent."""
        return self.address, self.user_agent


def pages(rng: random.Random) -> list[SitePage]:
    """The pages, most visited first."""
    paths = ["/", "/products", "/search", "/offers", "/blog", "/about", "/contact", "/delivery"]
    paths += [f"/offers/spring-{number}" for number in range(1, 9)]
    paths += [f"/products/{name}" for name in ("lamps", "chairs", "tables", "shelves", "rugs")]
    paths += [f"/products/item-{number}" for number in range(100, 190)]
    paths += [f"/blog/{year}/how-we-{verb}" for year in (2024, 2025) for verb in _VERBS]
    return [
        SitePage(path, rng.randint(4_000, 60_000), _images(path, rng.randint(0, 4), rng))
        for path in paths
    ]


_WORDS = ("lamp", "oak+table", "rug+blue", "chair", "shelf", "delivery")
_VERBS = ("build", "measure", "ship", "test", "hire", "paint", "repair", "photograph", "pack")


def _images(path: str, count: int, rng: random.Random) -> tuple[tuple[str, int], ...]:
    stem = path.strip("/").replace("/", "-") or "home"
    return tuple(
        (f"/img/{stem}-{number}.{rng.choice(('jpg', 'webp', 'png'))}", rng.randint(9_000, 240_000))
        for number in range(1, count + 1)
    )


class Hit(NamedTuple):
    """One request: its time (second of the day), visitor, target and result."""

    second: float
    visitor: Visitor
    method: str
    path: str
    status: int
    size: int
    referer: str


class SiteModel:
    """The site and its visitors, with the source of all random choices.

    Attributes:
        pretenders: number of programs so far that claim to be browsers.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.pretenders = 0
        self.pages = pages(rng)
        self.population = VisitorFactory(rng)
        self._weights = list(accumulate(1 / (3 + at) for at in range(len(self.pages))))

    def page(self) -> SitePage:
        """A random page; popular ones are more likely."""
        return self.rng.choices(self.pages, cum_weights=self._weights)[0]

    def any_page(self) -> SitePage:
        """A random page; all are equally likely."""
        return self.rng.choice(self.pages)

    def hit(self, visitor: Visitor, second: float, path: str, size: int, referer: str = "-") -> Hit:
        """A request, which sometimes fails."""
        chance = self.rng.random()
        status = 200 if chance > 0.02 else 404 if chance > 0.004 else 500
        return Hit(second, visitor, "GET", path, status, size if status == 200 else 512, referer)


class Browser:
    """A visitor's browser: with a page it loads those resources that it has not cached."""

    def __init__(self, world: SiteModel, visitor: Visitor, *, warm: bool = False) -> None:
        self._world = world
        self._visitor = visitor
        self._kept = {path for path, _ in SHARED} if warm else set()
        self.hits: list[Hit] = []

    def open(self, page: SitePage, second: float, referer: str) -> None:
        """Open a page; its resources follow a moment later, some as "not modified" (304)."""
        rng = self._world.rng
        path = f"{page.path}?q={rng.choice(_WORDS)}" if page.path == "/search" else page.path
        self.hits.append(self._world.hit(self._visitor, second, path, page.size, referer))
        at, source, random = second, HOST + page.path, rng.random
        for name, size in (*SHARED, *page.images):
            if name in self._kept:
                continue
            self._kept.add(name)
            at += 0.02 + (0.35 - 0.02) * random()
            if random() < 0.12:
                self.hits.append(Hit(at, self._visitor, "GET", name, 304, 0, source))
            else:
                self.hits.append(self._world.hit(self._visitor, at, name, size, source))


class VisitorFactory:
    """Creates visitors; no two share an address except within an office."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._taken: set[str] = set()
        self._offices = [self._address() for _ in range(40)]

    def person(self) -> Visitor:
        """A person with a browser; one in twenty shares the address of an office."""
        office = self._rng.random() < 0.05
        address = self._rng.choice(self._offices) if office else self._address()
        return Visitor(address, self._rng.choice(BROWSERS), self._log())

    def pretender(self) -> Visitor:
        """A program that claims to be a browser, with an address of its own."""
        return Visitor(self._address(), self._rng.choice(BROWSERS), self._log())

    def robot(self) -> Visitor:
        """A program that declares what it is."""
        return Visitor(self._address(), self._rng.choice(ROBOTS), self._log())

    def _log(self) -> Log:
        return self._rng.choices(("combined", "extended", "json"), (70, 18, 12))[0]

    def _address(self) -> str:
        while True:
            first = self._rng.choice((23, 45, 62, 78, 81, 91, 109, 151, 176, 188, 203, 212))
            if self._rng.random() < 0.1:
                words = (f"{self._rng.randrange(1, 65536):x}" for _ in range(4))
                address = f"2001:db8:{':'.join(words)}::{self._rng.randrange(1, 255):x}"
            else:
                rest = (self._rng.randrange(1, 255) for _ in range(3))
                address = ".".join(map(str, (first, *rest)))
            if address not in self._taken:
                self._taken.add(address)
                return address
