"""Fixtures for the tests of the source: nsqds that serve from memory, and their stream readers."""

import pytest

from sparq.spark import connections, source
from sparq.spark.options import SourceOptions
from sparq.spark.ranges import SCHEMA
from sparq.spark.source import NsqStreamReader
from tests.spark.range_server import RangeServer


@pytest.fixture
def servers():
    """Two nsqds with a topic `clicks`: the first has 4 messages, the second has 6."""
    with RangeServer() as first, RangeServer() as second:
        second.log = "cd" * 16
        for number in range(2):
            first.add([b"%da" % number, b"%db" % number], gap=100)
            second.add([b"%da" % number, b"%db" % number, b"%dc" % number])
        yield first, second


@pytest.fixture
def readers(servers):
    """A function that makes stream readers; they are stopped after the test."""
    made = []

    def make(*used: RangeServer, **options: str) -> NsqStreamReader:
        given = {
            "topic": "clicks",
            "channel": "archive",
            "nsqd_tcp_addresses": ",".join(server.address for server in used or servers),
            "startingOffsets": "earliest",
            "nsqdTimeoutMs": "10000",
        }
        made.append(NsqStreamReader(SourceOptions.of(given | options, stream=True), SCHEMA.names))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


@pytest.fixture
def no_long_pauses(monkeypatch):
    """Shorten the source's pauses: before an idle query asks again, and between retries."""
    monkeypatch.setattr(source, "NEWS_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(connections, "RETRY_FIRST_SECONDS", 0.01)
    monkeypatch.setattr(connections, "RETRY_MAX_SECONDS", 0.02)
