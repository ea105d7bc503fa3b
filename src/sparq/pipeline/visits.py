"""The rules of the spam analysis: what one visitor's clicks give away.

Pure: numpy arrays in, evidence out. Each rule is a function of the clicks as a set, so the order in
which two nsqds deliver them does not matter. Two kinds of rules:

- those that more clicks can only confirm (`burst`, `repeats`, `asked_robots_txt`) hold at once;
- those about a whole visit (`no_resources`, `clockwork`) are asked when the visit is over, since
  the click that refutes them may still be on its way.

The bounds are chosen to leave people alone: someone who opens twenty tabs from a list of results,
an office behind one address, a browser whose cache is warm or that shows no images.

Whether a visitor declares to be a robot is a matter of its user agent (`declared_name`): robots of
good manners name themselves and a page about them, libraries name themselves by default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE, RESOURCE, ROBOTS_TXT, OTHER = range(4)  # what was asked for

VISIT_GAP_S = 1_800  # the customary half hour of web analytics ends a visit
BURST_PAGES, BURST_S = 20, 10  # 2 pages a second, for 10 seconds
REPEAT_CLICKS, REPEAT_S = 15, 600
BARE_PAGES = 6  # pages of a visit that loads nothing a page is made of
CLOCK_GAPS, CLOCK_GAP_S, CLOCK_SPREAD = 15, 2.0, 0.15  # spread: standard deviation / mean
CLOCK_PAGES = 5  # different ones: a page that reloads itself is no robot
PAGES_MIN = min(BURST_PAGES, REPEAT_CLICKS, BARE_PAGES, CLOCK_GAPS)  # fewer prove nothing
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
        amount: how much of it there is, in the unit that the reason has; grows with the evidence.
        first_s, last_s: the event times that it spans.
        ids: some of the messages that it rests on.
        details: what a person would want to know.
    """

    reason: str
    amount: int
    first_s: int
    last_s: int
    ids: tuple[str, ...]
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clicks:
    """Clicks of one visitor in order of time: seconds since 1970, kinds, pages, message ids."""

    seconds: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int8]
    pages: npt.NDArray[np.object_]
    ids: npt.NDArray[np.object_]

    def __len__(self) -> int:
        """How many."""
        return len(self.seconds)

    def only(self, which: Any) -> Clicks:
        """Those that a mask or a slice picks."""
        return Clicks(self.seconds[which], self.kinds[which], self.pages[which], self.ids[which])

    def of_kind(self, kind: int) -> Clicks:
        """Those that asked for a page, a resource, ..."""
        return self.only(self.kinds == kind)

    def evidence(self, reason: str, amount: int, **details: Any) -> Evidence:
        """These clicks as evidence."""
        ids = tuple(str(one) for one in self.ids[:IDS_KEPT])
        first, last = int(self.seconds[0]), int(self.seconds[-1])
        return Evidence(reason, amount, first, last, ids, details)


def at_once(clicks: Clicks, *, declared: bool) -> Iterator[Evidence]:
    """What can be said though more may come; of a declared robot only that it knocks in bursts."""
    pages = clicks.of_kind(PAGE)
    yield from burst(pages)
    if not declared:
        yield from repeats(pages)
        yield from asked_robots_txt(clicks)


def of_visit(visit: Clicks) -> Iterator[Evidence]:
    """What can be said of a whole visit of someone who does not declare to be a robot."""
    yield from no_resources(visit)
    yield from clockwork(visit.of_kind(PAGE))


def burst(pages: Clicks) -> Iterator[Evidence]:
    """More pages within a few seconds than anyone opens by hand."""
    if len(pages) < BURST_PAGES:
        return
    counts = _within(pages.seconds, BURST_S)
    at = int(np.argmax(counts))
    most = int(counts[at])
    if most >= BURST_PAGES:
        yield pages.only(slice(at, at + most)).evidence(BURST, most, within_s=BURST_S)


def repeats(pages: Clicks) -> Iterator[Evidence]:
    """One page again and again: clicks that are meant to be counted."""
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
    """Only robots read robots.txt; this one says that it is a browser."""
    asked = clicks.of_kind(ROBOTS_TXT)
    if len(asked):
        yield asked.evidence(UNDECLARED, len(asked), sign="asked for robots.txt")


def no_resources(visit: Clicks) -> Iterator[Evidence]:
    """Pages, but nothing of what a browser loads with them."""
    pages = visit.of_kind(PAGE)
    if len(pages) >= BARE_PAGES and not (visit.kinds == RESOURCE).any():
        yield pages.evidence(BARE, len(pages), pages=len(pages), resources=0)


def clockwork(pages: Clicks) -> Iterator[Evidence]:
    """Pages at the pace of a clock."""
    if len(pages) <= CLOCK_GAPS:
        return
    gaps = np.diff(pages.seconds)
    mean = float(gaps.mean())
    # Times have whole seconds: what rounding alone adds (1/6 s^2 of variance) is no irregularity.
    spread = max(float(gaps.var()) - 1 / 6, 0.0) ** 0.5
    regular = mean >= CLOCK_GAP_S and spread <= CLOCK_SPREAD * mean
    if regular and len(set(pages.pages)) >= CLOCK_PAGES:
        yield pages.evidence(
            UNDECLARED, len(pages), sign="pages at the pace of a clock", gap_s=round(mean, 1)
        )


def _within(seconds: npt.NDArray[np.int64], span_s: int) -> npt.NDArray[np.int64]:
    """For each time how many lie in the span that begins with it; the times are sorted."""
    ends = np.searchsorted(seconds, seconds + span_s, side="right")
    return ends - np.arange(len(seconds))


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


@lru_cache(maxsize=65_536)  # a few hundred user agents make a whole day of clicks
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
