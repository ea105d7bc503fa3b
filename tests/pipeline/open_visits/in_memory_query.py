"""The buckets of a query without Spark: partitions are packed, each bucket gets its rows."""

import random
import re
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa
import xxhash

from sparq.demo.generator import generate
from sparq.pipeline import packing
from sparq.pipeline.open_visits.bucket import apply, close
from sparq.pipeline.open_visits.findings import FINDING, digest_of
from sparq.pipeline.open_visits.pack import CLICKS, OTHER_ENDINGS, RESOURCE_ENDINGS, blobs_of
from sparq.pipeline.open_visits.rows import Name
from sparq.pipeline.open_visits.tiers import (
    DEFAULT_LIMITS,
    BasePart,
    HotPart,
    VisitsLimits,
    held_state,
)
from sparq.pipeline.visits import OTHER, PAGE, RESOURCE, ROBOTS_TXT, declared_name
from tests.pipeline import plain as plain_clicks
from tests.pipeline.open_visits.plain import CLICK_SCHEMA, PlainVisits

PUBLISHED_S = 4_000_000_000  # after all event times: no mark is clamped
FIRST_BATCH_MS = 1_790_000_000_000
STEP_MS = 1_000


def hash_of(text):
    """A signed 64-bit hash, as in Spark."""
    number = xxhash.xxh3_64_intdigest(text.encode())
    return number - 2**64 if number >= 2**63 else number


def click(second, *, who="u", kind=PAGE, page=None, robot=False, ident=None):
    """One click of the visitor `who`."""
    agent = f"{'Testbot/1.0' if robot else 'browser'} of {who}"
    page = f"/{second}" if page is None else page
    number = hash_of(f"{who} {second} {kind} {page}") % 2**64 if ident is None else ident
    return {
        "visitor": hash_of(f"{who}\n{agent}"),
        "address": who,
        "agent": agent,
        "second": second,
        "kind": kind,
        "page": page,
        "page_hash": hash_of(page),
        "id": f"{number:016x}",
    }


@lru_cache
def day(size, seed):
    """The readable clicks of a generated day in time order, and the labels of planted visitors."""
    made = generate(size, seed)
    rows = []
    for number, line in enumerate(made.lines):
        try:
            fields = plain_clicks.read(line)
        except plain_clicks.Unreadable:
            continue
        rows.append(_row(fields, number))
    return rows, made.labels


def _row(fields, number):
    page, agent = fields["page"], fields["user_agent"] or "-"
    return {
        "visitor": hash_of(f"{fields['address']}\n{agent}"),
        "address": fields["address"],
        "agent": agent,
        "second": int(fields["time"].timestamp()),
        "kind": _kind(page),
        "page": page or "-",
        "page_hash": hash_of(page or "-"),
        "id": f"{number:016x}",
    }


def _kind(page):
    if page == "/robots.txt":
        return ROBOTS_TXT
    found = re.search(r"\.([0-9A-Za-z]{2,5})$", page or "")
    ending = found[1].lower() if found else ""
    if page is None or ending in OTHER_ENDINGS or re.search(r"/(?:feed|rss|atom)/?$", page):
        return OTHER
    return RESOURCE if ending in RESOURCE_ENDINGS else PAGE


def table_of(rows, nsqds, batch_ms):
    """Clicks as a table of `pack`'s input."""
    full = [
        {
            **row,
            "nsqd": nsqd,
            "newest_s": min(row["second"], PUBLISHED_S),
            "published_s": PUBLISHED_S,
            "batch_ms": batch_ms,
        }
        for row, nsqd in zip(rows, nsqds, strict=True)
    ]
    return pa.Table.from_pylist(full, CLICKS)


@dataclass
class InMemoryQuery:
    """A query with its buckets: `states` by bucket; `output` has all output rows."""

    buckets: int = 4
    partitions: int = 2
    limits: VisitsLimits = DEFAULT_LIMITS
    rows_max: int = 700  # per RecordBatch
    states: list = field(default_factory=list)
    output: list = field(default_factory=list)
    batches: int = 0

    def __post_init__(self):
        self.states = [held_state() for _ in range(self.buckets)]

    def packed(self, rows, nsqds, batch_ms):
        """The packed rows of a batch, as a pandas frame."""
        parts = []
        for number in range(self.partitions):
            mine = slice(number, None, self.partitions)
            table = table_of(rows[mine], nsqds[mine], batch_ms)
            batches = table.to_batches(max_chunksize=self.rows_max)
            parts += packing.pack_partition(batches, blobs_of, self.buckets)
        return pa.Table.from_batches(parts, packing.PACKED_SCHEMA).to_pandas()

    def apply(self, rows, nsqds, batch_ms=None, seed=0):
        """Process one batch of clicks, each with its nsqd; returns the output rows."""
        batch_ms = FIRST_BATCH_MS + self.batches * STEP_MS if batch_ms is None else batch_ms
        self.batches += 1
        if not rows:
            return []
        frame = self.packed(rows, nsqds, batch_ms)
        frame = frame.sample(frac=1, random_state=seed)  # a shuffle does not keep the order
        by_bucket = dict(list(frame.groupby("bucket")))
        out = []
        for bucket, state in enumerate(self.states):
            received = packing.receive([by_bucket[bucket]])
            out += apply(state, bucket, received, self.limits).to_pylist()
        self.output += out
        return out

    @staticmethod
    def visits_of(state):
        """Number of visits in a state; the last batch must have compacted it."""
        return len(BasePart.read(state).visits.visitor) + len(HotPart(state).visits()[0].visitor)

    def close(self):
        """End the run; returns the last output rows."""
        out = [row for state in self.states for row in close(state).to_pylist()]
        self.output += out
        return out


class Twin:
    """The plain version, run on the same rows."""

    def __init__(self):
        self._visits = PlainVisits()
        self._batches = 0
        self.output = []

    def apply(self, rows, nsqds, batch_ms=None):
        batch_ms = FIRST_BATCH_MS + self._batches * STEP_MS if batch_ms is None else batch_ms
        self._batches += 1
        if not rows:
            return
        newest = {}
        for row, nsqd in zip(rows, nsqds, strict=True):
            newest[nsqd] = max(row["second"], newest.get(nsqd, 0))
        table = pa.Table.from_pylist([_plain(row) for row in rows], CLICK_SCHEMA)
        self.output += self._visits.apply(batch_ms, table, newest).to_pylist()

    def close(self):
        self.output += self._visits.close().to_pylist()


def _plain(row):
    names = {
        "visitor": digest_of(Name(row["address"], row["agent"], declared=False)),
        "user_agent": row["agent"],
        "robot": declared_name(row["agent"]),
    }
    return {name: row.get(name) for name in ("address", "second", "kind", "page", "id")} | names


COLUMNS = (
    "visitor", "address", "user_agent", "reason", "revision", "amount", "first_time", "last_time",
    "evidence",
)  # fmt: skip


def findings(rows_out):
    """The findings among output rows, sorted for comparison."""
    rows = [row for row in rows_out if row.get("kind", FINDING) == FINDING]
    return sorted((*(row[name] for name in COLUMNS), *row["message_ids"]) for row in rows)


def evicted(rows_out):
    """Numbers of dropped visits, clicks and findings."""
    rows = [row for row in rows_out if row.get("kind") == "evicted"]
    names = ("evicted_visits", "evicted_clicks", "evicted_findings")
    return tuple(sum(row[name] for row in rows) for name in names)


def both(batches, **options):
    """Run batches of (rows, nsqds, batch time) through an `InMemoryQuery` and through the twin."""
    in_memory, twin = InMemoryQuery(**options), Twin()
    for number, batch in enumerate(batches):
        in_memory.apply(*batch, seed=number)
        twin.apply(*batch)
    in_memory.close()
    twin.close()
    return in_memory, twin


def shuffled(rows, seed):
    """The rows in an order that depends on the seed."""
    return random.Random(seed).sample(rows, len(rows))
