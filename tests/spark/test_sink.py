"""The sink: which columns are published, to which topic, and how many messages it reports."""

import pyarrow as pa
import pytest

from sparq.spark import encode
from sparq.spark.errors import RowError
from sparq.spark.options import OptionError, SinkOptions
from sparq.spark.sink import NsqWriter, body_column
from tests.spark.range_server import RangeServer
from tests.spark.test_data_source import schema_of


@pytest.fixture
def server():
    with RangeServer() as running:
        yield running


def write(server: RangeServer, schema: str, *columns: list, **options: str) -> int:
    """Write the same record batch twice; returns the number of messages reported."""
    names = [field.split()[0] for field in schema.split(", ")]
    rows = pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names)
    given = SinkOptions.of({"nsqd_tcp_addresses": server.address} | options)
    return NsqWriter(given, body_column(schema_of(schema))).write(iter([rows, rows])).messages


def test_body_or_value_is_published(server):
    """A binary or string column `body` or `value` is published; `body` takes precedence."""
    assert 4 == write(server, "index bigint, Value string", [1, 2], ["a", "b"], topic="t")
    assert 2 == write(server, "value string, body binary", ["no"], [b"yes"], topic="t")

    bodies = [body for _, body in server.published]
    assert [b"a", b"b", b"a", b"b", b"yes", b"yes"] == bodies
    assert {"t"} == {topic for topic, _ in server.published}


def test_rows_may_have_a_topic_each(server):
    """The column `topic` selects each row's topic; the option `topic` overrides it."""
    write(server, "topic string, body binary", ["a", "b"], [b"1", b"2"])
    write(server, "topic string, body binary", ["a", "b"], [b"1", b"2"], topic="c")

    assert [("a", b"1"), ("b", b"2")] * 2 == server.published[:4]
    assert {"c"} == {topic for topic, _ in server.published[4:]}


def test_a_missing_or_invalid_topic_is_refused(server):
    """A write without a topic raises OptionError, an invalid topic name in a row RowError."""
    with pytest.raises(OptionError, match="set the option topic, or add a column topic"):
        write(server, "body binary", [b"1"])
    with pytest.raises(RowError, match='invalid topic name: "a b"'):
        write(server, "topic string, body binary", ["a b"], [b"1"])


@pytest.mark.parametrize(
    ("last", "text"),
    [
        (None, r"row 14999 of partition 0 .* has no body \(null\)"),
        (b"", "row 14999 of partition 0 .* empty body"),
        (bytes(101), "row 14999 of partition 0 .* 101 bytes, over the limit of 100"),
    ],
)
@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_nothing_is_published_from_a_partition_with_an_invalid_row(
    server, monkeypatch, last, text, memory
):
    """All rows of a partition are checked before the first is published."""
    monkeypatch.setattr(encode, "MEMORY_BYTES_MAX", memory)
    rows = [b"%d" % number for number in range(14_999)]
    options = SinkOptions.of(
        {"nsqd_tcp_addresses": server.address, "topic": "t", "max_msg_size": "100"}
    )
    writer = NsqWriter(options, body_column(schema_of("body binary")))

    def batches(*bodies):
        for first in range(0, len(bodies), 10_000):
            column = pa.array(bodies[first : first + 10_000], pa.binary())
            yield pa.RecordBatch.from_arrays([column], ["body"])

    with pytest.raises(RowError, match=text):
        writer.write(batches(*rows, last))
    assert [] == server.published

    assert 15_000 == writer.write(batches(*rows, b"last")).messages
    assert [*rows, b"last"] == [body for _, body in server.published]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("index bigint, id string", r"needs a column body or value; its columns are index, id"),
        ("body bigint", "column body is bigint: cast it"),
        ("body binary, topic bigint", "column topic is not a string"),
    ],
)
def test_a_missing_body_or_wrong_column_type_is_an_error(schema, text):
    """A missing body column or a wrong column type is an error before any row is read."""
    with pytest.raises(OptionError, match=text):
        body_column(schema_of(schema))
