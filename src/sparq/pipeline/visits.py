"""The rules of the spam analysis: what the clicks of one visitor prove.

Pure: numpy arrays in, evidence out. Each rule is a function of the set of clicks, so the order in
which two nsqds deliver them does not matter. There are two kinds of rules:

- those that further clicks can only confirm (`burst`, `repeats`, `asked_robots_txt`) apply at once;
- those about a whole visit (`no_resources`, `clockwork`) apply when the visit is over, since a
  click that refutes them may still arrive.

The thresholds are chosen so that people are not flagged: a person who opens twenty tabs from a list
of results, an office that shares one address, a browser with a warm cache or without images.

A visitor's user agent shows whether it declares to be a robot (`declared_name`): well-behaved
robots name themselves and a page about them, and libraries send their name by default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE, RESOURCE, ROBOTS_TXT, OTHER = range(4)  # what a click requested

VISIT_GAP_S = 1_800  # half an hour without a click ends a visit, as usual in web analytics
BURST_PAGES, BURST_S = 20, 10  # 2 pages a second, for 10 seconds
REPEAT_CLICKS, REPEAT_S = 15, 600
BARE_PAGES = 6  # pages of a visit without any of the images, styles and scripts of pages
CLOCK_GAPS, CLOCK_GAP_S, CLOCK_SPREAD = 15, 2.0, 0.15  # spread: standard deviation / mean
CLOCK_PAGES = 5  # distinct pages: a page that reloads itself is no robot
PAGES_MIN = min(BURST_PAGES, REPEAT_CLICKS, BARE_PAGES, CLOCK_GAPS)  # fewer pages prove nothing
IDS_KEPT = 5

DECLARED, UNDECLARED, BURST, BARE, REPEATS = REASONS = (
    "declared_robot",
    "undeclared_robot",
    "burst",
    "no_resources",
    "repeats",
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why a visitor is suspected.

    Attributes:
        reason: one of REASONS.
        amount: amount of evidence, in a unit that depends on the reason; grows with the evidence.
        first_s, last_s: the event times of its first and last click, seconds since 1970.
        ids: ids of some of the messages that prove it.
        details: further facts, for people.
    """

    reason: str
    amount: int
    first_s: int
    last_s: int
    ids: tuple[str, ...]
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clicks:
    """Clicks of one visitor ordered by time: seconds since 1970, kinds, pages, message ids."""

    seconds: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int8]
    pages: npt.NDArray[np.object_]
    ids: npt.NDArray[np.object_]

    def __len__(self) -> int:
        """Number of clicks."""
        return len(self.seconds)

    def only(self, which: Any) -> Clicks:
        """The clicks that a mask or a slice picks."""
        return Clicks(self.seconds[which], self.kinds[which], self.pages[which], self.ids[which])

    def of_kind(self, kind: int) -> Clicks:
        """The clicks of one kind, such as PAGE."""
        return self.only(self.kinds == kind)

    def evidence(self, reason: str, amount: int, **details: Any) -> Evidence:
        """These clicks as evidence."""
        ids = tuple(str(one) for one in self.ids[:IDS_KEPT])
        first, last = int(self.seconds[0]), int(self.seconds[-1])
        return Evidence(reason, amount, first, last, ids, details)


def at_once(clicks: Clicks, *, declared: bool) -> Iterator[Evidence]:
    """Evidence that further clicks cannot refute; for a declared robot only bursts."""
    pages = clicks.of_kind(PAGE)
    yield from burst(pages)
    if not declared:
        yield from repeats(pages)
        yield from asked_robots_txt(clicks)


def of_visit(visit: Clicks) -> Iterator[Evidence]:
    """Evidence from a whole visit of a visitor that does not say that it is a robot."""
    yield from no_resources(visit)
    yield from clockwork(visit.of_kind(PAGE))


def burst(pages: Clicks) -> Iterator[Evidence]:
    """Yield evidence if a visitor opened more pages within BURST_S than a person can."""
    if len(pages) < BURST_PAGES:
        return
    counts = _within(pages.seconds, BURST_S)
    at = int(np.argmax(counts))
    most = int(counts[at])
    if most >= BURST_PAGES:
        yield pages.only(slice(at, at + most)).evidence(BURST, most, within_s=BURST_S)


def repeats(pages: Clicks) -> Iterator[Evidence]:
    """The same page again and again: clicks made to be counted."""
    if len(pages) < REPEAT_CLICKS:
        return
    best: Evidence | None = None
    names, codes = np.unique(pages.pages, return_inverse=True)
    for code in np.flatnonzero(np.bincount(codes) >= REPEAT_CLICKS):
        same = pages.only(codes == code)
        counts = _within(same.seconds, REPEAT_S)
        at = int(np.argmax(counts))
        most = int(counts[at])
        if most >= REPEAT_CLICKS and (best is None or most > best.amount):
            chosen = same.only(slice(at, at + most))
            best = chosen.evidence(REPEATS, most, page=str(names[code]), within_s=REPEAT_S)
    if best:
        yield best


def asked_robots_txt(clicks: Clicks) -> Iterator[Evidence]:
    """Requests for robots.txt, which only robots read, by a visitor that claims to be a browser."""
    asked = clicks.of_kind(ROBOTS_TXT)
    if len(asked):
        yield asked.evidence(UNDECLARED, len(asked), sign="asked for robots.txt")


def no_resources(visit: Clicks) -> Iterator[Evidence]:
    """Pages without any of the resources that a browser loads with them."""
    pages = visit.of_kind(PAGE)
    if len(pages) >= BARE_PAGES and not (visit.kinds == RESOURCE).any():
        yield pages.evidence(BARE, len(pages), pages=len(pages), resources=0)


def clockwork(pages: Clicks) -> Iterator[Evidence]:
    """Pages at regular intervals."""
    if len(pages) <= CLOCK_GAPS:
        return
    gaps = np.diff(pages.seconds)
    mean = float(gaps.mean())
    # Times are whole seconds: rounding alone adds 1/6 s^2 of variance, which is no irregularity.
    spread = max(float(gaps.var()) - 1 / 6, 0.0) ** 0.5
    regular = mean >= CLOCK_GAP_S and spread <= CLOCK_SPREAD * mean
    if regular and len(set(pages.pages)) >= CLOCK_PAGES:
        yield pages.evidence(
            UNDECLARED, len(pages), sign="pages at the pace of a clock", gap_s=round(mean, 1)
        )


def _within(seconds: npt.NDArray[np.int64], span_s: int) -> npt.NDArray[np.int64]:
    """For each time, the number of times in the span that begins with it; input is sorted."""
    ends = np.searchsorted(seconds, seconds + span_s, side="right")
    return ends - np.arange(len(seconds))


# "cubot" is a phone.
_WORD = re.compile(
    r"(?<!cu)bot\b|(?<!cu)bot[_/-]|robot|crawl|spider|slurp|scrap[ey]|\bfeed|feed(?:parser|burner)"
    r"|\brss\b|archiver|validator|monitor|headless|phantomjs|\bcurl/|\bwget|\bpython|libwww"
    r"|http-?client|http_client|okhttp|go-http|\bjava/|\bruby|\bperl|mechanize|node-fetch|axios"
    r"|apachebench|mediapartners|externalhit|preview|\+https?://",
    re.IGNORECASE,
)
_PART_OF_NAME = re.compile(r"[\w./+:-]")
NAME_CHARACTERS_MAX = 60


@lru_cache(maxsize=65_536)  # a whole day of clicks has only a few hundred user agents
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
