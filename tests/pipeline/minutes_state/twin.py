"""The minutes in plain Python: one dictionary per minute, one click at a time.

The only code it shares with `minutes_state` is the low mark.
"""

import hashlib
from collections import Counter

from sparq.pipeline.low_mark import LowMark

HORIZON_S = AHEAD_MAX_S = 86_400


class Minute:
    """The figures of one open minute."""

    def __init__(self):
        self.revisions = self.clicks = self.bytes = 0
        self.status = Counter()
        self.visitors = set()
        self.pages = Counter()

    def add(self, click):
        self.clicks += 1
        self.bytes = min(self.bytes + click["bytes"], 2**63 - 1)
        self.status[status_class(click["status"])] += 1
        self.visitors.add(click["visitor"])
        if click["page"] is not None:
            self.pages[shown(click["page"])] += 1

    def row(self, minute, *, final):
        """As `output.read` returns it, but with the minute as a number."""
        top = sorted(self.pages.items(), key=lambda page: (-page[1], page[0].encode()))[:10]
        return {
            "minute": minute,
            "revision": self.revisions + int(final),
            "final": final,
            "clicks": self.clicks,
            "visitors": len(self.visitors),
            "bytes": self.bytes,
            **{f"status_{name}": self.status[name] for name in NAMES},
            "top_pages": [{"page": page, "clicks": clicks} for page, clicks in top],
        }


NAMES = ("1xx", "2xx", "3xx", "4xx", "5xx", "other")


def status_class(status):
    return f"{status // 100}xx" if status is not None and 100 <= status < 600 else "other"


def shown(page):
    if len(page) <= 500:
        return page
    return f"{page[:480]}...{hashlib.sha256(page.encode()).hexdigest()[:16]}"


class Twin:
    """All open minutes; `newest` has the newest row of every minute, `late` the late clicks."""

    def __init__(self, horizon_s=HORIZON_S):
        self.horizon_s = horizon_s
        self.mark = LowMark()
        self.closed_before = 0
        self.open = {}
        self.newest = {}
        self.late = Counter()
        self.rejected = []

    def apply(self, batch, batch_ms):
        """Process the messages of a batch; returns its rows."""
        clicks = [message for message in batch if message["reason"] is None]
        self.rejected += [message for message in batch if message["reason"] is not None]
        ahead = (max(message["published_s"] for message in batch) + AHEAD_MAX_S) // 60
        touched = set()
        for click in clicks:
            minute = click["second"] // 60
            if minute < self.closed_before or minute > ahead:
                self.late[minute] += 1
                continue
            self.open.setdefault(minute, Minute()).add(click)
            touched.add(minute)
        for minute in touched:
            self.open[minute].revisions += 1
        self.mark.advance(marks_of(clicks), batch_ms)
        closing = max(self.closed_before, (self.mark.low_s - self.horizon_s) // 60)
        rows = [self.open[one].row(one, final=False) for one in touched if one >= closing]
        rows += self._closed([minute for minute in self.open if minute < closing])
        self.closed_before = closing
        self.newest |= {row["minute"]: row for row in rows}
        return rows

    def close(self):
        rows = self._closed(list(self.open))
        self.newest |= {row["minute"]: row for row in rows}
        return rows

    def _closed(self, minutes):
        return [self.open.pop(minute).row(minute, final=True) for minute in minutes]


def marks_of(clicks):
    marks = {}
    for click in clicks:
        newest = min(click["second"], click["published_s"])
        marks[click["nsqd"]] = max(newest, marks.get(click["nsqd"], newest))
    return marks
