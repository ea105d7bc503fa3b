"""What the tests of the source stand on: nsqds that answer from memory, and readers of them."""

import pytest

from sparq.spark import source, topic_connections
from sparq.spark.decode import SCHEMA
from sparq.spark.source import NsqStreamReader
from sparq.spark.source_options import SourceOptions
from tests.spark.range_server import RangeServer


@pytest.fixture
def servers():
    """Two nsqds, with four and with six messages."""
    with RangeServer() as first, RangeServer() as second:
        second.log = "cd" * 16
        for number in range(2):
            first.add([b"%da" % number, b"%db" % number], gap=100)
            second.add([b"%da" % number, b"%db" % number, b"%dc" % number])
        yield first, second


@pytest.fixture
def readers(servers):
    """Makes stream readers and closes them."""
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
    """An idle query asks again at once, and so does one whose nsqd is out of reach."""
    monkeypatch.setattr(source, "NEWS_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(topic_connections, "RETRY_FIRST_SECONDS", 0.01)
    monkeypatch.setattr(topic_connections, "RETRY_MAX_SECONDS", 0.02)
