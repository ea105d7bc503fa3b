"""A range gives every message exactly once despite failures, or reports what is missing."""

import logging
import re
import threading
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.client.errors import WrongPeerError
from sparq.protocol import batch, commands, frames, layout
from sparq.protocol.errors import RemoteError
from sparq.spark import ranges
from sparq.spark.errors import DataLossError, UnreachableError
from sparq.spark.options import ClusterOptions
from sparq.spark.ranges import SCHEMA, Decoder, Range, read_range
from tests.spark.range_server import RangeServer
from tests.spark.stored import encoded, stored_batch
from tests.support.waiting import wait_for


@pytest.fixture
def server():
    """Five batches of two messages, with gaps between their indexes."""
    with RangeServer() as running:
        for number in range(5):
            running.add([b"%da" % number, b"%db" % number], gap=10 * number)
        running.read_batches_max = 1
        yield running


ALL = [b"%d%c" % (number, letter) for number in range(5) for letter in b"ab"]


def range_of(server: RangeServer, first: int = 0, end: int | None = None) -> Range:
    end = server.end if end is None else end
    ordinal = server.ordinal_at(first)
    count = server.ordinal_at(end) - ordinal
    return Range("clicks", "h:1", server.address, server.log, first, end, ordinal, count)


def bodies(wanted: Range, *, fails: bool = True, timeout_ms: int = 20_000) -> list[bytes]:
    found = []
    for rows in read_range(wanted, ["body"], ClusterOptions((), (), timeout_ms), fails=fails):
        found += rows.column(0).to_pylist()
    return found


@pytest.mark.parametrize("answered", [0, 1, 3])
def test_a_broken_connection_loses_and_repeats_no_row(server, answered):
    """After a lost connection the read continues: no row is missing or returned twice."""
    server.hang_up_after["Read"] = answered

    assert bodies(range_of(server)) == ALL


def test_waiting_ends_at_the_time_limit(server):
    """An nsqd that stays away longer than the time limit fails the read with UnreachableError."""
    wanted = range_of(server)
    server.stop()

    with pytest.raises(UnreachableError, match=rf"nsqd {server.address} has been unreachable"):
        bodies(wanted, timeout_ms=200)


def test_a_read_waits_for_an_authd_that_fails(server):
    """E_AUTH_FAILED is retried: the driver has read with this secret; E_UNAUTHORIZED is raised."""
    server.refuse["Read"] = RemoteError("E_AUTH_FAILED", "AUTH failed")
    server.refuse["ReadEnds"] = server.refuse["Read"]

    def vouch() -> None:
        wait_for(lambda: sum(isinstance(each, commands.Read) for each in server.heard) >= 2)
        server.refuse.clear()

    vouching = threading.Thread(target=vouch)
    vouching.start()

    assert bodies(range_of(server)) == ALL

    vouching.join()
    server.refuse["Read"] = RemoteError("E_UNAUTHORIZED", 'AUTH failed for READ on "clicks" ""')
    with pytest.raises(RemoteError, match="E_UNAUTHORIZED"):
        bodies(range_of(server))


GONE = RemoteError("E_RANGE_FAILED", "failed topic clicks not found")


@pytest.mark.parametrize(
    ("harm", "text", "left"),
    [
        (({"lost": 1}, 15), "1 messages of .* are lost: their data before index .* damaged", ALL),
        (({"log": "cd" * 16}, 10), "10 messages of .* are lost: their log no longer", []),
        (({"refuse": {"Read": GONE, "ReadEnds": GONE}}, 10), "10 .* lost: their log no longer", []),
        (({"first": 11}, 10), "2 messages of .* are lost: they were deleted", ALL[2:]),
        (({}, 11), "has 10 messages instead of 11", ALL),
    ],
)
def test_a_loss_fails_the_read_or_is_logged(server, caplog, harm, text, left):
    """Damage, a replaced log, a deleted topic and deleted messages are counted as lost.

    So is a number of rows other than the ordinals' difference. Without failOnDataLoss all other
    messages are read.
    """
    attributes, messages = harm
    wanted = range_of(server)._replace(messages=messages)
    for name, value in attributes.items():
        setattr(server, name, value)

    with pytest.raises(DataLossError, match=text):
        bodies(wanted)
    with caplog.at_level(logging.WARNING):
        assert bodies(wanted, fails=False) == left
    assert any(re.search(text, line) for line in caplog.messages)


def test_a_gap_before_the_first_message_is_no_loss(server):
    """A range that begins in a gap before the log's first message has lost nothing."""
    wanted = range_of(server, first=5)
    server.first = 12

    assert bodies(wanted) == ALL[2:]


def test_errors_that_waiting_does_not_help_are_raised_at_once(server, monkeypatch):
    """An I/O error of nsqd's disk is no data loss; a peer that is no nsqd is not waited for."""
    wanted = range_of(server)
    server.refuse = {"Read": RemoteError("E_RANGE_FAILED", "READ failed input/output error")}
    with pytest.raises(RemoteError, match="input/output error"):
        bodies(wanted)

    monkeypatch.setattr(server, "_identify", lambda _: b"HTTP/1.1 400")
    with pytest.raises(WrongPeerError):
        bodies(wanted)


def test_a_read_waits_until_the_log_reaches_its_range(server):
    """A read waits if the log's end is before its range: a restarted nsqd may announce it later."""
    wanted = range_of(server)
    whole, server.batches = server.batches, server.batches[:2]
    server.refuse = {
        "Read": RemoteError("E_RANGE_FAILED", "READ failed index 1 is beyond the end, 2")
    }

    def grow() -> None:
        server.batches = whole
        server.refuse.clear()

    threading.Timer(0.2, grow).start()

    assert bodies(wanted) == ALL


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rows_one_by_one(data: bytes, first: int, end: int) -> list[tuple]:
    """The twin of the decoder: reads batch by batch, frame by frame, field by field."""
    rows = []
    for stored in batch.walk(data):
        start = 0
        for position, stop in enumerate(stored.ends.tolist()):
            frame = bytes(stored.frames[start:stop])
            start = stop
            index = stored.header.first_index + position
            if not first <= index < end:
                continue
            timestamp_us = int.from_bytes(frame[8:16], "big") // 1000
            rows.append(
                (
                    "clicks",
                    "h:4150",
                    frame[18:34].decode(),
                    index,
                    EPOCH + timedelta(microseconds=timestamp_us),
                    frame[34:],
                )
            )
    return rows


def rows_of(batches) -> list[tuple]:
    return [tuple(row.values()) for batch_ in batches for row in batch_.to_pylist()]


runs_of_bodies = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=30)


@st.composite
def runs(draw) -> tuple[bytes, int, int]:
    """Some stored batches with gaps between their indexes, and a range of their indexes."""
    data, index = b"", draw(st.integers(0, 1 << 50))
    low = index
    for piece in draw(st.lists(runs_of_bodies, max_size=6)):
        dues = [(0, 5)] if draw(st.booleans()) else None
        data += stored_batch(piece, index, dues=dues)
        index += len(piece) + draw(st.sampled_from([0, 0, 1, 4_194_304]))
    first = draw(st.integers(low, index))
    return data, first, draw(st.integers(first, index))


@settings(max_examples=150, deadline=None)
@given(runs(), st.sampled_from([1, 3, 50_000]))
def test_decoding_equals_reading_frame_by_frame(run, rows_max):
    """Any batches and any range give the twin's rows, in pieces of at most ROWS_MAX rows."""
    data, first, end = run
    before, ranges.ROWS_MAX = ranges.ROWS_MAX, rows_max
    try:
        batches = list(Decoder("clicks", "h:4150").decode(memoryview(data), first, end))
    finally:
        ranges.ROWS_MAX = before

    assert rows_one_by_one(data, first, end) == rows_of(batches)
    assert all(0 < piece.num_rows <= rows_max for piece in batches)


def test_a_decoder_has_all_columns_or_the_requested_ones_in_order():
    """Record batches have exactly the declared schema, or the chosen columns in the given order."""
    data = stored_batch([b"a", b"bc"], 5)
    (whole,) = Decoder("clicks", "h:4150").decode(memoryview(data), 0, 99)
    (piece,) = Decoder("clicks", "h:4150", ["body", "index"]).decode(memoryview(data), 6, 7)

    assert SCHEMA == whole.schema
    whole.validate(full=True)
    assert [{"body": b"bc", "index": 6}] == piece.to_pylist()


def test_the_largest_index_is_exact():
    """The largest index, of 54 bits, is exact, and so is its id."""
    index = layout.INDEX_LIMIT - 1
    run, ends = batch.encode_frames([frames.BodySlices.of([b"x"])], index, 1023, 1)
    data = encoded(run, ends, index)
    (piece,) = Decoder("t", "n", ["id", "index"]).decode(memoryview(data), 0, index + 1)

    assert [{"id": f"{1023 << 54 | index:016x}", "index": index}] == piece.to_pylist()


def test_a_flipped_bit_is_an_error_and_never_a_row():
    """The payload's checksum is verified before anything is decoded."""
    data = bytearray(stored_batch([b"hello"] * 20, 5))
    data[-9] ^= 1

    with pytest.raises(ValueError, match="damaged"):
        list(Decoder("t", "n").decode(memoryview(data), 0, 99))


def test_rows_share_no_memory_with_the_bytes_received():
    """Decoded rows do not change when the receive buffer is overwritten."""
    data = bytearray(stored_batch([b"hello", b"you"], 5))
    (piece,) = Decoder("t", "n").decode(memoryview(data), 0, 99)
    before = pa.RecordBatch.from_pylist(piece.to_pylist(), schema=SCHEMA)
    data[:] = bytes(len(data))

    assert before == piece
