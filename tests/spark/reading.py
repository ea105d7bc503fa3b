"""What stream readers of tests answer, in short form."""

import pickle

from sparq.spark.decode import SCHEMA
from sparq.spark.source import NsqStreamReader


def indexes(offset) -> dict[str, int]:
    """How far an offset goes in each log."""
    return {name: place["index"] for name, place in offset.items() if name != "cut"}


def rows_of(reader, start, end) -> list[tuple[str, bytes]]:
    """(nsqd, body) of each row between two offsets, as the executors would read them."""
    found = []
    for partition in pickle.loads(pickle.dumps(reader.partitions(start, end))):
        copy = pickle.loads(pickle.dumps(NsqStreamReader(reader._options, SCHEMA.names)))
        for rows in copy.read(partition):
            found += zip(
                rows.column("nsqd").to_pylist(), rows.column("body").to_pylist(), strict=True
            )
    return found
