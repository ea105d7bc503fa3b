"""What a user agent says of itself: the word by which a program declares that it is one.

Robots of good manners name themselves and a page about them; libraries name themselves by default.
A few hundred user agents make a whole day of clicks, so each is looked at once.
"""

from __future__ import annotations

import re
from functools import lru_cache

# "cubot" is a telephone.
_WORD = re.compile(
    r"(?<!cu)bot\b|(?<!cu)bot[_/-]|robot|crawl|spider|slurp|scrap[ey]|\bfeed|feed(?:parser|burner)"
    r"|\brss\b|archiver|validator|monitor|headless|phantomjs|\bcurl/|\bwget|\bpython|libwww"
    r"|http-?client|http_client|okhttp|go-http|\bjava/|\bruby|\bperl|mechanize|node-fetch|axios"
    r"|apachebench|mediapartners|externalhit|preview|\+https?://",
    re.IGNORECASE,
)
_PART_OF_NAME = re.compile(r"[\w./+:-]")
NAME_CHARACTERS_MAX = 60


@lru_cache(maxsize=65_536)
def declared_name(user_agent: str) -> str | None:
    """The name that a robot gives itself, as `Googlebot/2.1`; None for what may be a browser."""
    found = _WORD.search(user_agent)
    if not found:
        return None
    start, end = found.span()
    while start > 0 and _PART_OF_NAME.match(user_agent[start - 1]):
        start -= 1
    while end < len(user_agent) and _PART_OF_NAME.match(user_agent[end]):
        end += 1
    return user_agent[start:end][:NAME_CHARACTERS_MAX]
