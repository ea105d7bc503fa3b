"""All buckets of the query `metrics` in one process; they do Spark's work for the functions."""

import functools
import random
from collections import Counter

import pyarrow as pa
import xxhash

from sparq.demo.generator import generate
from sparq.pipeline.minutes_state import bucket, output, packer
from sparq.pipeline.packing import pack_partition, receive
from tests.pipeline import plain

INPUT = pa.schema(
    [
        ("minute", pa.int64()),
        ("visitor", pa.int64()),
        ("page", pa.string()),
        ("page_hash", pa.int64()),
        ("bytes", pa.int64()),
        ("status", pa.int32()),
        ("nsqd", pa.string()),
        ("newest_s", pa.int64()),
        ("published_s", pa.int64()),
        ("batch_ms", pa.int64()),
        ("rejected", pa.struct(list(output.REJECTED_SCHEMA))),
    ]
)


def hashed(text):
    return xxhash.xxh64_intdigest(text.encode()) - 2**63


def message(second=0, visitor="v", page="/", **others):
    """One message as the twin takes it; with a `reason` it is a rejected message."""
    defaults = {"bytes": 10, "status": 200, "nsqd": "a", "published_s": second, "index": 0}
    given = {"second": second, "visitor": visitor, "page": page, "reason": None, "body": b""}
    return defaults | given | others


def table(messages, batch_ms):
    """The messages as a table of the packer's input."""
    return pa.Table.from_pylist([_row(one, batch_ms) for one in messages], INPUT)


def _row(one, batch_ms):
    common = {key: one[key] for key in ("nsqd", "published_s")} | {"batch_ms": batch_ms}
    if one["reason"] is not None:
        kept = {key: one[key] for key in ("nsqd", "index", "reason", "body")}
        kept |= {"id": f"{one['index']:016x}", "timestamp": one["published_s"] * 1_000_000}
        return common | {"rejected": kept}
    return common | {
        "minute": one["second"] // 60,
        "visitor": hashed(one["visitor"]),
        "page": one["page"],
        "page_hash": hashed(one["page"] or ""),
        "bytes": one["bytes"],
        "status": one["status"],
        "newest_s": min(one["second"], one["published_s"]),
    }


class MemoryState:
    """The state of one bucket in memory, in Spark's place; `calls` counts the accesses."""

    def __init__(self):
        self.held = None
        self.minutes = {}
        self.calls = Counter()

    def recent(self):
        self.calls["recent"] += 1
        return self.held

    def cold(self, minute):
        self.calls["cold"] += 1
        return self.minutes[minute]

    def write(self, writes):
        self.held = writes.recent
        self.minutes |= writes.cold
        for minute in writes.gone:
            del self.minutes[minute]
        self.calls["writes"] += 1 + len(writes.cold) + len(writes.gone)

    def copy(self):
        again = MemoryState()
        again.held, again.minutes = self.held, dict(self.minutes)
        return again


class Buckets:
    """A query with `count` buckets; each batch is divided at random among `partitions` parts."""

    def __init__(self, count, limits=bucket.LIMITS, partitions=2, seed=1):
        self.count = count
        self.limits = limits
        self.partitions = partitions
        self.random = random.Random(seed)
        self.states = [MemoryState() for _ in range(count)]
        self.rows = [output.SCHEMA.empty_table()]

    def packed(self, messages, batch_ms):
        """The packed rows of all partitions of a batch."""
        parts = [[] for _ in range(self.partitions)]
        for one in messages:
            self.random.choice(parts).append(one)
        rows = self.random.randint(1, 20)
        return [
            packed
            for part in parts
            for packed in pack_partition(
                table(part, batch_ms).to_batches(max_chunksize=rows), packer.blobs_of, self.count
            )
        ]

    def results(self, messages, batch_ms):
        """Each bucket's result for a batch; the states are not changed."""
        frame = pa.Table.from_batches(self.packed(messages, batch_ms)).to_pandas()
        frame = frame.sample(frac=1, random_state=self.random.randrange(2**32))
        return [
            bucket.apply(number, state, receive([mine]), self.limits)
            for number, state in enumerate(self.states)
            for mine in [frame[frame["bucket"] == number]]
        ]

    def apply(self, messages, batch_ms):
        """Process a batch; returns its output rows."""
        results = self.results(messages, batch_ms)
        for state, (writes, _) in zip(self.states, results, strict=True):
            state.write(writes)
        rows = pa.concat_tables([rows for _, rows in results])
        self.rows.append(rows)
        return rows

    def close(self):
        """The last rows of all open minutes."""
        rows = [
            bucket.close(number, [state.held[1], *state.minutes.values()])
            for number, state in enumerate(self.states)
        ]
        self.rows += rows
        return pa.concat_tables(rows)

    def figures(self):
        """The newest row of each minute, by minute, in the twin's form."""
        return by_minute(output.read(pa.concat_tables(self.rows)))

    def late(self):
        return counted(pa.concat_tables(self.rows), output.LATE)


def by_minute(rows):
    found = {}
    for row in rows.to_pylist():
        row["minute"] = int(row["minute"].timestamp()) // 60
        assert row["minute"] not in found
        found[row["minute"]] = row
    return found


def counted(rows, kind):
    """{minute: clicks} of the rows of one kind."""
    found = Counter()
    for row in of_kind(rows, kind):
        found[int(row["minute"].timestamp()) // 60] += row["clicks"]
    return found


def of_kind(rows, kind):
    return [row for row in rows.to_pylist() if row["kind"] == kind]


@functools.cache
def generated(seed, size=1000):
    """The messages of a generated day; each is published at the time of its click."""
    messages, second = [], 0
    for index, body in enumerate(generate(size, seed).lines):
        try:
            click = plain.read(body)
        except plain.Unreadable:
            found = {"reason": "unreadable", "body": body, "index": index}
            messages.append(message(published_s=second, **found))
            continue
        second = int(click["time"].timestamp())
        visitor = f"{click['address']}\n{click['user_agent']}"
        figures = {key: click[key] for key in ("bytes", "status")}
        messages.append(message(second, visitor, click["page"], index=index, **figures))
    return messages


def batches_of(messages, nsqds, rows, lag):
    """Batches of `rows` messages per nsqd; nsqd number n is read n * `lag` batches late."""
    logs = [[one | {"nsqd": f"nsqd-{at}"} for one in messages[at::nsqds]] for at in range(nsqds)]
    batch, turn = [], 0
    while turn == 0 or batch or turn <= lag * nsqds:
        batch = []
        for at, log in enumerate(logs):
            first = (turn - lag * at) * rows
            batch += log[first : first + rows] if first >= 0 else []
        if batch:
            yield batch
        turn += 1
