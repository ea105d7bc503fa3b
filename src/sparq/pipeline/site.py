"""The site that the generator logs: its pages, what they are made of, and who comes to see them.

Names and numbers only. Addresses of search engines and browsers' names are of the kind that real
logs have; nothing here belongs to anybody.
"""

from __future__ import annotations

from typing import Final

_TOPICS: Final = ("queues", "logs", "streams", "replay", "batches", "clocks", "disks", "spark")
_PRODUCTS: Final = ("starter", "team", "enterprise", "academic")

PAGES: Final[list[str]] = [
    "/",
    "/pricing",
    "/blog/",
    "/docs/",
    "/download",
    "/about",
    *(f"/products/{name}" for name in _PRODUCTS),
    *(f"/docs/{topic}/{page}" for topic in _TOPICS for page in ("intro", "howto", "reference")),
    *(f"/blog/2026/{month:02}/{topic}" for month in range(1, 7) for topic in _TOPICS),
    "/contact",
    "/jobs",
    "/imprint",
    "/search",
]
"""The most popular first."""

SHARED: Final = ["/static/site.css", "/static/site.js", "/static/logo.svg", "/favicon.ico"]
RESOURCES: Final = [
    "/static/fonts/text.woff2",
    "/static/fonts/mono.woff2",
    "/static/charts.js",
    "/static/highlight.css",
    "/static/highlight.js",
    "/static/print.css",
]

SOURCES: Final = [
    "-",
    "-",
    "https://www.google.com/",
    "https://www.google.com/",
    "https://duckduckgo.com/",
    "https://news.ycombinator.com/",
    "https://www.bing.com/search?q=message+queue",
    "https://example.org/links",
]

BROWSERS: Final = [
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/{major}.0.0.0 Safari/537.36",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/{major}.0.0.0 Safari/537.36",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:{major}.0) Gecko/20100101 Firefox/{major}.0",
    "Mozilla/5.0 (X11; Linux x86_64; rv:{major}.0) Gecko/20100101 Firefox/{major}.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 14_{minor}) AppleWebKit/605.1.15 (KHTML, like Gecko) "
    "Version/17.{minor} Safari/605.1.15",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_{minor} like Mac OS X) AppleWebKit/605.1.15 "
    "(KHTML, like Gecko) Version/17.{minor} Mobile/15E148 Safari/604.1",
    "Mozilla/5.0 (Linux; Android 14; Pixel 8) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/{major}.0.0.0 Mobile Safari/537.36",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/{major}.0.0.0 Safari/537.36 Edg/{major}.0.0.{minor}",
]
"""`{major}` and `{minor}` stand for version numbers."""

CRAWLERS: Final = [
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
    "Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)",
    "Mozilla/5.0 (compatible; YandexBot/3.0; +http://yandex.com/bots)",
    "Mozilla/5.0 (compatible; AhrefsBot/7.0; +http://ahrefs.com/robot/)",
    "DuckDuckBot/1.1; (+http://duckduckgo.com/duckduckbot.html)",
    "Mozilla/5.0 (compatible; Baiduspider/2.0; +http://www.baidu.com/search/spider.html)",
]

UNREADABLE: Final = [
    '203.0.113.9 - - [03/Mar/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 51 "-" "Mozilla/5.0 (cut',
    "logrotate: restarting after rotation",
    '{"time": "2026-03-03T10:00:00Z", "remote_addr": "203.0.113.9", "request": "GET /',
    '203.0.113.9 - - [yesterday] "GET / HTTP/1.1" 200 51 "-" "-"',
]
"""What logs have besides clicks: cut lines, other programs' words, nonsense."""


def page_images(page: str) -> list[str]:
    """The pictures of a page: none to four, always the same."""
    name = page.strip("/").replace("/", "-") or "home"
    return [f"/static/img/{name}-{number}.webp" for number in range(len(page) % 5)]
