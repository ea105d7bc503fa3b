"""The sink: which rows are published, as which commands, to which nsqd."""

import itertools
import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.options.limits import IdentifyLimits
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from sparq.protocol.parser import CommandParser
from sparq.spark import sink
from sparq.spark.errors import RowError, UnreachableError
from sparq.spark.options import ClusterOptions, OptionError, SinkOptions
from sparq.spark.sink import (
    NsqWriter,
    Publisher,
    RowPosition,
    check_rows,
    pieces,
    published_columns,
)
from tests.spark.range_server import RangeServer
from tests.spark.test_data_source import schema_of


@pytest.fixture
def servers():
    with RangeServer() as first, RangeServer(ranges=0) as second:
        yield first, second


@pytest.fixture
def server(servers):
    return servers[0]


def sink_options(*servers: RangeServer, **options: str) -> SinkOptions:
    addresses = ",".join(server.address for server in servers) or "h:1"
    return SinkOptions.of({"nsqd_tcp_addresses": addresses} | options)


def batch(**columns) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


# From rows to messages


def write(server: RangeServer, schema: str, *columns: list, **options: str) -> int:
    """Write the same record batch twice; returns the number of messages published."""
    names = [field.split()[0] for field in schema.split(", ")]
    rows = pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names)
    writer = NsqWriter(sink_options(server, **options), published_columns(schema_of(schema)))
    before = len(server.published)
    writer.write(iter([rows, rows]))
    return len(server.published) - before


def test_body_or_value_is_published(server):
    """A binary or string column `body` or `value` is published; `body` takes precedence."""
    assert 4 == write(server, "index bigint, Value string", [1, 2], ["a", "ö"], topic="t")
    assert 2 == write(server, "value string, body binary", ["no"], [b"yes"], topic="t")

    bodies = [body for _, body in server.published]
    assert [b"a", "ö".encode(), b"a", "ö".encode(), b"yes", b"yes"] == bodies
    assert {"t"} == {topic for topic, _ in server.published}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("index bigint, id string", r"needs a column body or value; its columns are index, id"),
        ("body bigint", "column body is bigint: cast it to string or binary"),
        ("body binary, topic bigint", "column topic is bigint: cast it to string"),
        ("body binary, defer_ms string", "column defer_ms is string: cast it to bigint or int"),
        ("body binary", "set the option topic, or add a column topic"),
    ],
)
def test_a_missing_or_wrong_column_is_an_error(server, schema, text):
    """A missing body or topic, or a wrong column type, is an error before any row is read."""
    with pytest.raises(OptionError, match=text):
        write(server, schema, *([b"1"] for _ in schema.split(", ")))


@pytest.mark.parametrize(
    ("column", "values", "text"),
    [
        ("body", [b"a", None], r"row 1001 of partition 3 of batch 7 .* has no body \(null\)"),
        ("body", [b"a", b"b", b""], "row 1002 of .* has an empty body"),
        ("body", [b"a", b"12345678901"], "row 1001 of .* 11 bytes, over the limit of 10"),
        ("topic", ["a", None], r"row 1001 of partition 3 of batch 7 .* has no topic \(null\)"),
        ("topic", ["a", "b", "a b"], 'row 1002 of .* has an invalid topic name: "a b"'),
        ("defer_ms", [0, -1], "row 1001 of .* has a defer_ms of -1, not from 0 to 5000"),
        ("defer_ms", [5_001], r"row 1000 of .* 5001, .* \(option max_req_timeout\)"),
    ],
)
def test_a_row_that_cannot_become_a_message_is_refused(column, values, text):
    """A body, topic or delay that nsqd would refuse raises RowError with row and partition."""
    options = sink_options(max_msg_size="10", max_req_timeout="5s")
    rows = {"body": [b"x"] * len(values), column: values}
    with pytest.raises(RowError, match=text):
        check_rows(batch(**rows), options, RowPosition("partition 3 of batch 7", 1000))


def test_a_message_must_fit_an_mpub():
    """A message's limit is max_msg_size, or less if max_body_size leaves less room."""
    for limits, size_max in (((1000, 100), 92), ((90, 100), 90)):
        options = sink_options(max_msg_size=str(limits[0]), max_body_size=str(limits[1]))
        check_rows(batch(body=[bytes(size_max)]), options, RowPosition("", 0))
        with pytest.raises(RowError, match=f"over the limit of {size_max} "):
            check_rows(batch(body=[bytes(size_max + 1)]), options, RowPosition("", 0))


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_nothing_is_published_from_a_partition_with_an_invalid_row(server, monkeypatch, memory):
    """All rows of a partition are checked before the first is published."""
    monkeypatch.setattr(sink, "MEMORY_BYTES_MAX", memory)
    rows = [b"%d" % number for number in range(14_999)]
    options = sink_options(server, topic="t", max_msg_size="100")
    writer = NsqWriter(options, published_columns(schema_of("body binary")))

    def batches(*bodies):
        for first in range(0, len(bodies), 10_000):
            yield batch(body=pa.array(bodies[first : first + 10_000], pa.binary()))

    with pytest.raises(RowError, match=r"row 14999 of partition 0 .* 101 bytes, over the limit"):
        writer.write(batches(*rows, bytes(101)))
    assert [] == server.published

    writer.write(batches(*rows, b"last"))
    assert [*rows, b"last"] == [body for _, body in server.published]


# From messages to commands


def sent(made) -> list[list[bytes]]:
    """The messages that nsqd's parser finds in each MPUB."""
    received = []
    for piece in made:
        parser = CommandParser(IdentifyLimits(max_body_size=6 << 20))
        parser.feed(piece.head + bytes(piece.data))
        while not isinstance(command := parser.next(), commands.MultiPublish):
            assert command is not None
        received.append([bytes(one) for one in command.bodies])
        assert (piece.messages, 1) == (len(received[-1]), piece.answers)
    return received


@given(
    st.lists(st.binary(min_size=1, max_size=50), max_size=40),
    st.integers(58, 400),
    st.integers(0, 5),
    st.sampled_from([pa.binary(), pa.large_binary()]),
)
def test_rows_are_sent_unchanged_in_mpubs_within_the_limit(bodies, body_size, skipped, kind):
    """Any column, also a slice, arrives unchanged and in order; each MPUB is within the limit."""
    rows = batch(body=pa.array([b"x"] * skipped + bodies, kind)).slice(skipped)
    mpubs = list(pieces(rows, sink_options(topic="t", max_body_size=str(body_size))))

    assert bodies == [one for run in sent(mpubs) for one in run]
    assert all(4 + len(mpub.data) <= body_size for mpub in mpubs)
    # An MPUB ends only where the next message would not have fitted.
    assert all(
        4 + len(first.data) + 4 + second.data[:4].tolist()[-1] > body_size
        for first, second in itertools.pairwise(mpubs)
    )


def test_large_messages_and_columns(monkeypatch):
    """A message larger than PIECE_BYTES, but within nsqd's limits, is sent in its own MPUB.

    A column too large for 31-bit offsets is sent in halves, in order.
    """
    rows = batch(body=[b"a", bytes(sink.PIECE_BYTES), b"b"])
    assert [1, 1, 1] == [len(run) for run in sent(pieces(rows, sink_options(topic="t")))]

    monkeypatch.setattr(sink, "ARROW_BYTES_MAX", 100)
    bodies = [b"%04d" % number for number in range(100)]
    found = sent(pieces(batch(body=bodies), sink_options(topic="t")))

    assert bodies == [one for run in found for one in run]
    assert len(found) > 1


def test_deferred_messages_are_sent_many_at_a_time(server):
    """Deferred messages are DPUBs, up to DEFERRED_MAX for each round trip, with exact delays."""
    count = 2 * sink.DEFERRED_MAX + 1
    rows = batch(body=[b"%d" % at for at in range(count)], defer_ms=list(range(1, count + 1)))
    made = list(pieces(rows, sink_options(topic="t")))
    publisher = Publisher(sink_options(server).cluster)
    for piece in made:
        publisher.publish(piece)
    publisher.close()

    assert [sink.DEFERRED_MAX, sink.DEFERRED_MAX, 1] == [piece.answers for piece in made]
    assert {("t", b"%d" % at): at + 1 for at in range(count)} == server.deferred


# From commands to nsqds


@pytest.fixture
def publisher(servers):
    publisher = Publisher(sink_options(*servers, nsqdTimeoutMs="10000").cluster)
    yield publisher
    publisher.close()


def mpub(*bodies: bytes) -> sink.CommandRun:
    (only,) = pieces(batch(body=list(bodies)), sink_options(topic="t"))
    return only


def bodies_at(server: RangeServer) -> list[bytes]:
    return [body for _, body in server.published]


def test_nsqds_take_turns(servers):
    """Consecutive pieces go to the nsqds in turn, from the task's turn on; one nsqd is as Go's."""
    publisher = Publisher(sink_options(*servers).cluster, turn=1)
    for number in range(4):
        publisher.publish(mpub(b"%da" % number, b"%db" % number))
    publisher.close()

    assert [b"1a", b"1b", b"3a", b"3b"] == bodies_at(servers[0])
    assert [b"0a", b"0b", b"2a", b"2b"] == bodies_at(servers[1])


def test_if_an_nsqd_fails_another_gets_the_messages(servers, publisher):
    """If an nsqd is down or has a full disk, the other gets all pieces."""
    publisher.publish(mpub(b"1"))
    servers[0].stop()
    publisher.publish(mpub(b"2"))
    publisher.publish(mpub(b"3"))
    assert [b"2", b"3"] == bodies_at(servers[1])

    servers[0].start()
    servers[1].refuse["MultiPublish"] = RemoteError("E_MPUB_FAILED", "MPUB failed no space")
    publisher.publish(mpub(b"4"))
    assert b"4" == bodies_at(servers[0])[-1]


@pytest.mark.parametrize("answered", [0, 2])
@pytest.mark.parametrize("refused", [False, True])
def test_a_piece_without_all_its_answers_is_sent_again(servers, publisher, answered, refused):
    """A piece that is not wholly answered with OK goes to the next nsqd: at-least-once.

    Answers that are still to come are not taken for those of the next piece.
    """
    (piece,) = pieces(batch(body=[b"1", b"2", b"3"], defer_ms=[9] * 3), sink_options(topic="t"))
    if refused:
        full = RemoteError("E_DPUB_FAILED", "DPUB failed no space")
        servers[0].refuse_after["DeferredPublish"] = answered, full
    else:
        servers[0].hang_up_after["DeferredPublish"] = answered
    publisher.publish(piece)
    publisher.publish(mpub(b"x"))

    assert [b"1", b"2"][:answered] == bodies_at(servers[0])[:answered]
    assert [b"1", b"2", b"3"] == bodies_at(servers[1])
    assert b"x" == bodies_at(servers[0])[-1]


def test_a_task_waits_until_an_nsqd_is_back(servers, publisher):
    """If no nsqd is reachable, the task waits until one is back; then the time limit begins anew.

    After the time limit, UnreachableError gives the reason for each nsqd.
    """
    for server in servers:
        server.stop()
    threading.Timer(0.2, servers[1].start).start()
    publisher.publish(mpub(b"x"))
    assert [b"x"] == bodies_at(servers[1])

    servers[1].stop()
    addresses = tuple(server.address for server in servers)
    impatient = Publisher(ClusterOptions(addresses, (), 100))
    with pytest.raises(UnreachableError, match=f"{servers[0].address}.*{servers[1].address}"):
        impatient.publish(mpub(b"x"))


def test_a_refused_message_is_not_sent_to_another_nsqd(servers, publisher):
    """E_BAD_MESSAGE is raised immediately; no other nsqd gets the message."""
    servers[0].refuse["MultiPublish"] = RemoteError("E_BAD_MESSAGE", "MPUB message too big 9 > 8")

    with pytest.raises(RemoteError, match="too big"):
        publisher.publish(mpub(b"x"))
    assert [] == servers[1].published


def test_auth_failed_is_retried_after_a_first_success(servers, publisher):
    """E_AUTH_FAILED on a first connection is raised; after a successful publish it is retried."""
    failed = RemoteError("E_AUTH_FAILED", "AUTH failed")
    servers[0].refuse["Identify"] = failed
    with pytest.raises(RemoteError, match="E_AUTH_FAILED"):
        publisher.publish(mpub(b"1"))

    servers[0].refuse.clear()
    publisher.publish(mpub(b"2"))
    for server in servers:
        server.refuse["MultiPublish"] = failed
        threading.Timer(0.2, server.refuse.clear).start()
    publisher.publish(mpub(b"3"))

    assert [b"2", b"3"] == sorted([*bodies_at(servers[0]), *bodies_at(servers[1])])
