"""A range gives every message exactly once despite failures, or reports what is missing."""

import gc
import logging
import threading

import pytest

from sparq.client.errors import WrongPeerError
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from sparq.spark import ranges
from sparq.spark.errors import DataLossError, UnreachableError
from sparq.spark.ranges import Loss, Range, read_range
from tests.spark.range_server import RangeServer
from tests.support.waiting import wait_for

FAIL, CONTINUE = Loss(fail=True), Loss(fail=False)


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


def bodies(wanted: Range, loss: Loss = FAIL, timeout_ms: int = 20_000) -> list[bytes]:
    found = []
    for rows in read_range(wanted, ["body"], timeout_ms, loss):
        found += rows.column(0).to_pylist()
    return found


def test_a_range_may_begin_within_a_stored_batch(server):
    """A range may begin and end within a stored batch."""
    assert bodies(range_of(server)) == ALL
    assert bodies(range_of(server, 1, server.end - 1)) == ALL[1:-1]


@pytest.mark.parametrize("answered", [0, 1, 3])
def test_a_broken_connection_loses_and_repeats_no_row(server, answered):
    """After a lost connection the read continues: no row is missing or returned twice."""
    server.hang_up_after["Read"] = answered

    assert bodies(range_of(server)) == ALL


def test_a_read_continues_after_a_restart_of_nsqd(server):
    """A read continues after its nsqd was away for a while."""
    pieces = read_range(range_of(server), ["body"], 20_000, FAIL)
    found = next(pieces).column(0).to_pylist()
    server.stop()
    threading.Timer(0.3, server.start).start()
    for rows in pieces:
        found += rows.column(0).to_pylist()

    assert found == ALL


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


def test_damage_is_data_loss(server):
    """Messages that nsqd reports as lost to damage fail the read."""
    wanted = range_of(server)._replace(messages=15)
    server.lost = 1

    with pytest.raises(DataLossError, match=r"1 messages of .* are lost: their data before index"):
        bodies(wanted)


def test_without_fail_on_data_loss_damage_is_skipped_and_logged(server, caplog):
    """Without failOnDataLoss all other messages are read, and each loss is logged."""
    server.lost = 1
    with caplog.at_level(logging.WARNING):
        assert bodies(range_of(server)._replace(messages=15), CONTINUE) == ALL

    assert ["damaged" in line for line in caplog.messages] == [True] * 5


def test_another_log_is_data_loss(server):
    """Reading a topic that was deleted and created again raises DataLossError."""
    wanted = range_of(server)
    server.log = "cd" * 16

    with pytest.raises(DataLossError, match=r"10 messages of .* are lost: their log no longer"):
        bodies(wanted)
    assert bodies(wanted, CONTINUE) == []


def test_a_topic_that_is_gone_is_data_loss(server):
    """Reading a topic that no longer exists raises DataLossError."""
    wanted = range_of(server)
    gone = RemoteError("E_RANGE_FAILED", "failed topic clicks not found")
    server.refuse = {"Read": gone, "ReadEnds": gone}

    with pytest.raises(DataLossError, match=r"10 messages of .* are lost: their log no longer"):
        bodies(wanted)


def test_deleted_messages_are_data_loss(server):
    """Messages deleted by retention are counted as lost; the others are read."""
    wanted = range_of(server)
    server.first = 11

    with pytest.raises(DataLossError, match=r"2 messages of .* are lost: they were deleted"):
        bodies(wanted)
    assert bodies(wanted, CONTINUE) == ALL[2:]


def test_a_gap_before_the_first_message_is_no_loss(server):
    """A range that begins in a gap before the log's first message has lost nothing."""
    wanted = range_of(server, first=5)
    server.first = 12

    assert bodies(wanted) == ALL[2:]


def test_a_row_count_other_than_that_of_the_ordinals_fails(server):
    """A read whose row count differs from the ordinals' difference fails."""
    with pytest.raises(DataLossError, match="has 10 messages instead of 11"):
        bodies(range_of(server)._replace(messages=11))


def test_a_disk_error_of_nsqd_is_raised_unchanged(server):
    """An I/O error of nsqd's disk is raised as it is, not as data loss."""
    server.refuse = {"Read": RemoteError("E_RANGE_FAILED", "READ failed input/output error")}

    with pytest.raises(RemoteError, match="input/output error"):
        bodies(range_of(server))


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


def test_another_program_at_the_address_is_an_immediate_error(server, monkeypatch):
    """A peer that is not an nsqd raises WrongPeerError, without retries."""
    wanted = range_of(server)
    monkeypatch.setattr(server, "_identify", lambda _: b"HTTP/1.1 400")

    with pytest.raises(WrongPeerError):
        bodies(wanted)


def test_settle_freezes_garbage_collection_only_in_a_spark_task(monkeypatch):
    """`freeze_loaded_objects` calls `gc.freeze` once, and only in a Spark task."""
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    ranges.freeze_loaded_objects.cache_clear()
    ranges.freeze_loaded_objects()
    assert not frozen

    ranges.freeze_loaded_objects.cache_clear()
    monkeypatch.setattr(ranges.TaskContext, "get", object)
    ranges.freeze_loaded_objects()
    ranges.freeze_loaded_objects()
    ranges.freeze_loaded_objects.cache_clear()

    assert [True] == frozen
