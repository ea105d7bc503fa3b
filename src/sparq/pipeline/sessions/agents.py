"""The name that a program gives itself in its user agent, which tells a robot from a browser.

Well-behaved robots name themselves and a page about them, and libraries send their name by default.
"""

from __future__ import annotations

import re

# "cubot" is a phone, and Lynx, a browser for terminals, says libwww-FM.
_WORD = re.compile(
    r"(?<!cu)bot\b|(?<!cu)bot[_/-]|robot|crawl|spider|slurp|scrap[ey]|\bfeed|feed(?:parser|burner)"
    r"|\brss\b|archiver|validator|monitor|headless|phantomjs|\bcurl/|\bwget|\bpython"
    r"|libwww(?!-FM)|http-?client|http_client|okhttp|go-http|\bjava/|\bruby|\bperl|mechanize"
    r"|node-fetch|axios|apachebench|mediapartners|externalhit|preview|\+https?://",
    re.IGNORECASE,
)
_PART_OF_NAME = re.compile(r"[\w./+:-]")
NAME_CHARACTERS_MAX = 60


def declared_name(user_agent: str) -> str | None:
    """The name that a robot gives itself, such as `Googlebot/2.1`; None if it may be a browser."""
    found = _WORD.search(user_agent)
    if not found:
        return None
    start, end = found.span()
    while start > 0 and _PART_OF_NAME.match(user_agent[start - 1]):
        start -= 1
    while end < len(user_agent) and _PART_OF_NAME.match(user_agent[end]):
        end += 1
    return user_agent[start:end][:NAME_CHARACTERS_MAX]
