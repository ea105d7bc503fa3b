"""Helpers that read with a stream reader as Spark does, without a Spark session."""

import pickle

from sparq.spark.ranges import SCHEMA
from sparq.spark.source import NsqStreamReader
from tests.support.waiting import wait_for


def indexes(offset) -> dict[str, int]:
    """The index of each log in an offset."""
    return {name: place["index"] for name, place in offset.items() if name != "cut"}


def rows_of(reader, start, end, columns=("nsqd", "body")) -> list[tuple]:
    """Read chosen columns of all rows between two offsets, as the executors do."""
    found = []
    for partition in pickle.loads(pickle.dumps(reader.partitions(start, end))):
        copy = pickle.loads(pickle.dumps(NsqStreamReader(reader._options, SCHEMA.names)))
        for rows in copy.read(partition):
            found += zip(*(rows.column(name).to_pylist() for name in columns), strict=True)
    return found


def bodies_of(reader, start, end) -> list[bytes]:
    """The bodies of all rows between two offsets."""
    return [body for (body,) in rows_of(reader, start, end, ["body"])]


def drain(reader, limit=None) -> list[list[tuple]]:
    """Read to the end; returns the rows of each batch."""
    limit = limit or reader.getDefaultReadLimit()
    start, batches = reader.initialOffset(), []
    while (end := reader.latestOffset(start, limit)) != start:
        batches.append(rows_of(reader, start, end))
        start = end
    return batches


class Follower:
    """A reader and the calls that Spark makes to it, one micro-batch after another.

    Attributes:
        reader: the reader.
        offset: up to where it has read, as a checkpoint would record it.
        rows: (topic, nsqd, body) of each row.
        batches: (start, end) of each micro-batch.
    """

    def __init__(self, reader: NsqStreamReader, offset=None) -> None:
        self.reader = reader
        self.offset = reader.initialOffset() if offset is None else offset
        self.rows: list[tuple] = []
        self.batches: list[tuple] = []

    def step(self) -> bool:
        """Read one micro-batch; returns False if there are no new messages."""
        end = self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())
        if end == self.offset:
            return False
        self.rows += self.read_range(self.offset, end)
        self.batches.append((self.offset, end))
        self.offset = end
        return True

    def read_range(self, start, end) -> list[tuple]:
        """The rows of a micro-batch."""
        return rows_of(self.reader, start, end, ("topic", "nsqd", "body"))

    def read(self, count: int) -> None:
        """Read until there are exactly `count` rows."""
        while len(self.rows) < count:
            wait_for(self.step, describe=lambda: f"{count} rows: {self.rows}")
        assert count == len(self.rows), self.rows

    def bodies(self, topic: str) -> list[bytes]:
        """The bodies of one topic, sorted."""
        return sorted(body for name, _, body in self.rows if name == topic)
