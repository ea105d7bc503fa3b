"""The source's side in the driver: what it answers to the calls that Spark makes, in their order.

No Spark session runs here; `tests/scenarios/spark/test_session.py` has one.
"""

import threading
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from sparq.spark import options as option_limits
from sparq.spark import source, topic_connections
from sparq.spark.errors import DataLossError, SupersededError, UnreachableError
from sparq.spark.offsets import Key
from sparq.spark.options import OptionError
from sparq.spark.source_options import NO_LIMIT
from tests.spark.range_server import RangeServer, key
from tests.spark.reading import indexes, rows_of
from tests.support.servers import free_port, spawn_nsqd

ALL = ReadAllAvailable()


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch):
    """An idle query asks again at once."""
    monkeypatch.setattr(source, "NEWS_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(topic_connections, "RETRY_FIRST_SECONDS", 0.01)
    monkeypatch.setattr(topic_connections, "RETRY_MAX_SECONDS", 0.02)


# Where a query begins


def test_a_query_begins_where_the_option_says(servers, readers):
    """Earliest, latest, where the channel stands, or an index or a word for each nsqd."""
    first, second = servers
    first.committed = 101
    named = f'{{"{first.address}": 201, "{key(second)}": "latest"}}'

    for options, expected in (
        ({"startingOffsets": "committed"}, (101, 0)),
        ({}, (0, 0)),
        ({"startingOffsets": "latest"}, (204, 6)),
        ({"startingOffsets": named}, (201, 6)),
    ):
        initial = readers(**options).initialOffset()
        assert dict(zip((key(first), key(second)), expected, strict=True)) == indexes(initial)
        assert {first.ordinal_at(expected[0]), expected[1]} == {
            place["ordinal"] for place in initial.values()
        }


def test_a_query_may_begin_at_a_time(servers, readers):
    """startingTimestamp goes before startingOffsets."""
    reader = readers(startingTimestamp="1763687000000")

    assert {key(server): server.end for server in servers} == indexes(reader.initialOffset())
    asked = [heard for heard in servers[0].heard if isinstance(heard, commands.ReadEnds)]
    assert 1763687000000000000 == asked[-1].value


def test_offsets_of_no_log_are_refused(servers, readers):
    """A name that is no nsqd's, or an index beyond the end, is a mistake to be told of."""
    with pytest.raises(
        OptionError, match="option startingOffsets: no log of topic clicks was found for h:1"
    ):
        readers(startingOffsets='{"h:1": 5}').initialOffset()
    with pytest.raises(OptionError, match="option startingOffsets: index 7 is after index 6"):
        readers(startingOffsets=f'{{"{servers[1].address}": 7}}').initialOffset()


def test_an_offset_before_the_logs_first_message_is_data_loss(servers, readers):
    """What was deleted cannot be begun with."""
    servers[0].first = 102
    named = f'{{"{servers[0].address}": 50}}'

    with pytest.raises(
        DataLossError, match="from index 50 to index 102, where the log now starts, were deleted"
    ):
        readers(startingOffsets=named).initialOffset()
    reader = readers(startingOffsets=named, failOnDataLoss="false")
    assert {"index": 102, "ordinal": 2} == reader.initialOffset()[key(servers[0])]


def test_a_query_does_not_begin_without_one_of_its_nsqds(servers, readers):
    """Where an nsqd's log begins can't be known without it: the error names it."""
    gone = f"127.0.0.1:{free_port()}"
    reader = readers(nsqd_tcp_addresses=f"{servers[0].address},{gone}", nsqdTimeoutMs="100")

    with pytest.raises(UnreachableError, match=gone):
        reader.initialOffset()


@pytest.mark.parametrize("drained", [False, True])
def test_a_mistyped_address_is_named_soon(servers, readers, monkeypatch, drained):
    """A query that has read nothing need not wait for a minute: it can be started again."""
    monkeypatch.setattr(option_limits, "BEGIN_TIMEOUT_MS", 200)
    gone = f"127.0.0.1:{free_port()}"
    given = {"nsqd_tcp_addresses": f"{servers[0].address},{gone}", "nsqdTimeoutMs": ""}
    reader = readers(**given)
    begun = time.monotonic()
    if drained:
        reader.prepareForTriggerAvailableNow()

    with pytest.raises(UnreachableError, match=f"nsqd {gone}: .*refused"):
        reader.initialOffset()
    assert time.monotonic() - begun < 5
    assert 60_000 == reader._options.cluster.timeout_ms


def test_a_channel_with_consumers_is_an_error(servers, readers):
    """nsqd's own words say why the channel can't be had."""
    text = "ATTACH failed channel clicks:archive has 2 consumers"
    servers[0].refuse["Attach"] = RemoteError("E_ATTACH_FAILED", text)

    with pytest.raises(RemoteError, match="has 2 consumers"):
        readers().initialOffset()


# How far a batch goes


def test_a_batch_goes_to_the_end(servers, readers):
    """Without a limit a batch takes all there is, and its rows are exactly these."""
    reader = readers()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)

    assert {key(servers[0]): 204, key(servers[1]): 6} == indexes(end)
    assert {name: end[name] for name in indexes(end)} == reader.reportLatestOffset()
    assert sorted(
        [(servers[0].address, body) for body in (b"0a", b"0b", b"1a", b"1b")]
        + [(servers[1].address, body) for body in (b"0a", b"0b", b"0c", b"1a", b"1b", b"1c")]
    ) == sorted(rows_of(reader, start, end))


def test_a_limit_is_shared_out_and_all_is_read_in_the_end(servers, readers):
    """maxOffsetsPerTrigger holds for each batch; batch after batch gives every row once."""
    reader = readers(maxOffsetsPerTrigger="3")
    limit = reader.getDefaultReadLimit()
    assert ReadMaxRows(3) == limit
    start, counts, found = reader.initialOffset(), [], []
    while (end := reader.latestOffset(start, limit)) != start:
        rows = rows_of(reader, start, end)
        counts.append(len(rows))
        found += rows
        start = end

    assert [3, 3, 3, 1] == counts
    assert 10 == len(set(found))
    for options in ({"minOffsetsPerTrigger": "3"}, {"maxBytesPerTrigger": "3"}):
        assert ReadMaxRows(NO_LIMIT) == readers(**options).getDefaultReadLimit()
    assert ALL == readers().getDefaultReadLimit()


def test_an_idle_query_waits_for_news(servers, readers, monkeypatch):
    """Without news the answer is the start, after a while; with news it comes at once."""
    reader = readers(servers[1])
    start = reader.latestOffset(reader.initialOffset(), ALL)
    begun = time.monotonic()

    assert start == reader.latestOffset(start, ALL)
    assert time.monotonic() - begun >= 0.05

    monkeypatch.setattr(source, "NEWS_WAIT_SECONDS", 30)
    threading.Timer(0.1, servers[1].add, [[b"new"]]).start()

    assert {key(servers[1]): 7} == indexes(reader.latestOffset(start, ALL))


def test_the_cursor_follows_what_spark_has_committed(servers, readers):
    """nsqd hears of progress with the next latestOffset already, and only of progress."""
    reader = readers(servers[1])
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(2))
    assert 0 == servers[1].committed

    reader.latestOffset(end, ReadMaxRows(2))
    reader.latestOffset(end, ReadMaxRows(2))
    assert 2 == servers[1].committed
    reader.commit({key(servers[1]): 4})
    assert 4 == servers[1].committed

    heard = [heard.index for heard in servers[1].heard if isinstance(heard, commands.CommitRange)]
    assert [2, 4] == heard


def test_a_reader_that_asks_again_for_an_older_place_takes_the_cursor_back(servers, readers):
    """With startingOffsets=earliest nsqd keeps all that is now to be read, from the first call."""
    servers[1].committed = 5
    readers(servers[1]).initialOffset()

    assert 0 == servers[1].committed


def test_another_query_on_the_channel_ends_this_one(servers, readers):
    """The newest attachment wins; the older query learns of it when it next commits."""
    older, newer = readers(servers[1]), readers(servers[1])
    start = older.initialOffset()
    newer.initialOffset()
    end = older.latestOffset(start, ReadMaxRows(2))

    with pytest.raises(SupersededError, match="another query has taken over channel archive"):
        older.latestOffset(end, ALL)
    newer.commit(end)
    assert 2 == servers[1].committed


# nsqds come and go


def test_a_new_nsqd_joins_in_a_step_of_its_own(servers, readers, monkeypatch):
    """It enters the offset with its first index; the next batch reads it from there."""
    reader = readers(servers[0])
    start = reader.latestOffset(reader.initialOffset(), ALL)
    servers[1].committed = 6
    reader._fleet.remember([Key(servers[1].address, "")])
    joined = reader.latestOffset(start, ALL)

    assert indexes(start) | {key(servers[1]): 0} == indexes(joined)
    assert [] == reader.partitions(start, joined)
    assert 0 == servers[1].committed
    end = reader.latestOffset(joined, ALL)
    assert 6 == len(rows_of(reader, joined, end))


def test_a_topic_that_appears_is_read_from_its_first_message(servers, readers):
    """The query has created the channel there: nobody has said what it need not see.

    Of an nsqd that was away, and has the topic that is read elsewhere, only what is new is read.
    """
    for server in servers:
        server.created, server.committed = True, server.end
    absent = f"127.0.0.1:{free_port()}"
    reader = readers(servers[0], startingOffsets="committed")
    reader._fleet.remember([Key(servers[1].address, "")])
    start = reader.latestOffset({}, ALL)
    assert {key(servers[0]): 0, key(servers[1]): 0} == indexes(start)
    assert [0, 0] == [server.committed for server in servers]

    servers[1].committed = servers[1].end
    reader = readers(servers[0], startingOffsets="committed")
    start = reader.latestOffset({f"{absent}/{servers[0].log}": 202}, ALL)
    reader._fleet.remember([Key(servers[1].address, "")])
    assert 6 == indexes(reader.latestOffset(start, ALL))[key(servers[1])]

    servers[1].created = False
    reader = readers(servers[1], startingOffsets="committed")
    assert {key(servers[1]): 6} == indexes(reader.latestOffset({}, ALL))


def test_what_took_the_port_of_an_nsqd_that_has_moved_ends_no_query(servers, readers, tmp_path):
    """A checkpoint names the address that a log once had: its batch is read where the log is now.

    A test of golden checkpoints failed now and then, when another nsqd had the port for HTTP.
    """
    first, _ = servers
    with spawn_nsqd(tmp_path) as nsqd, RangeServer(ranges=0) as plain:
        for stranger in (nsqd.http, plain.address):
            start, end = ({f"{stranger}/{first.log}": index} for index in (201, 204))
            reader = readers(first)

            assert [b"1a", b"1b"] == [body for _, body in rows_of(reader, start, end)]
            assert [] == rows_of(reader, end, reader.latestOffset(end, ALL))


def test_what_took_the_port_of_an_nsqd_that_is_read_ends_no_query(servers, readers):
    """The address was right once: the others go on, and it is read when it is back."""
    first, second = servers
    reader = readers()
    start = reader.latestOffset(reader.initialOffset(), ALL)
    second.stop()
    first.add([b"new"])
    with RangeServer(second.port, ranges=0):
        end, deadline = start, time.monotonic() + 30
        while not any("cannot read ranges" in reason for reason in reader._fleet.out_of_reach):
            end = reader.latestOffset(start, ALL)
            assert time.monotonic() < deadline

    assert [b"new"] == [body for _, body in rows_of(reader, start, end)]
    second.start()
    while reader._fleet.out_of_reach:
        reader.latestOffset(end, ALL)
        assert time.monotonic() < deadline


def test_a_log_that_joins_from_a_time_may_go_away_meanwhile(servers, readers):
    """It joins when it is back; the others go on."""
    first, second = servers
    reader = readers(first, startingTimestamp="5")
    start = reader.latestOffset(reader.initialOffset(), ALL)
    first.add([b"new"])
    reader._fleet.remember([Key(second.address, "")])
    second.hang_up_after["Ends"] = 1
    assert {key(first): first.end} == indexes(reader.latestOffset(start, ALL))
    start, deadline = reader.latestOffset(start, ALL), time.monotonic() + 30
    while key(second) not in start:
        start = reader.latestOffset(start, ALL)
        assert time.monotonic() < deadline


def test_an_nsqd_out_of_reach_keeps_its_offset(servers, readers):
    """The others go on; when it is back it is attached anew, and read where it was left."""
    first, second = servers
    reader = readers()
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    second.stop()
    end = reader.latestOffset(start, ALL)

    assert (204, indexes(start)[key(second)]) == (
        indexes(end)[key(first)],
        indexes(end)[key(second)],
    )

    second.start()
    latest = end
    while latest[key(second)] == end[key(second)]:
        latest = reader.latestOffset(end, ALL)
    assert 6 == indexes(latest)[key(second)]
    assert 2 == sum(isinstance(heard, commands.Attach) for heard in second.heard)


def test_a_checkpoint_is_enough_to_go_on(servers, readers):
    """After a crash Spark asks for partitions first: no initialOffset, no latestOffset."""
    start, end = {key(servers[1]): 2}, {key(servers[1]): 5}

    assert [b"0c", b"1a", b"1b"] == [body for _, body in rows_of(readers(), start, end)]


def test_an_nsqd_at_a_new_address_is_found_by_its_log(servers, readers):
    """The log's id says what an index means; the address in the offset is only its name."""
    start = {f"127.0.0.1:1/{servers[1].log}": 2}
    reader = readers(servers[1])
    end = reader.latestOffset(start, ALL)

    assert {f"127.0.0.1:1/{servers[1].log}": 6} == indexes(end)
    assert [("127.0.0.1:1", b"0c")] == rows_of(reader, start, end)[:1]


def test_a_log_that_was_replaced_is_data_loss(servers, readers):
    """A topic deleted and made anew, or another disk: never silently other data."""
    reader = readers(servers[1])
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    servers[1].stop()
    old = key(servers[1])
    servers[1].log = "ef" * 16
    servers[1].start()

    with pytest.raises(DataLossError, match=r"its log cdcd.* no longer exists"):
        while True:
            reader.latestOffset(start, ALL)

    follower = readers(servers[1], failOnDataLoss="false")
    joined = follower.latestOffset(start, ALL)
    assert {old: 2, key(servers[1]): 0} == indexes(joined)
    assert joined[old]["gone"]
    assert {old: 2, key(servers[1]): 6} == indexes(follower.latestOffset(joined, ALL))


def test_messages_deleted_before_they_were_read_are_data_loss(servers, readers, caplog):
    """A log that begins at a higher ordinal than the offset has lost what lies between."""
    server = servers[0]
    start = {key(server): {"index": 1, "ordinal": 1}}
    server.first = 201

    lost = f"1 messages of topic clicks at nsqd {server.address} are lost"
    for call in (
        lambda reader: reader.latestOffset(start, ALL),
        lambda reader: reader.partitions(start, {key(server): {"index": 204, "ordinal": 4}}),
    ):
        with pytest.raises(DataLossError, match=lost):
            call(readers(server))

    follower = readers(server, failOnDataLoss="false")
    end = follower.latestOffset(start, ALL)
    assert [b"1a", b"1b"] == [body for _, body in rows_of(follower, start, end)]
    assert 1 == sum(lost in line for line in caplog.messages)


def test_a_gap_of_indexes_is_no_data_loss(servers, readers):
    """After a clean restart a log begins at a higher index, and all that was read is gone."""
    server = servers[0]
    start = {key(server): {"index": 102, "ordinal": 2}}
    server.first = server.committed = 202

    reader = readers(server)
    end = reader.latestOffset(start, ALL)

    assert {"index": 204, "ordinal": 4} == end[key(server)]
    assert [b"1a", b"1b"] == [body for _, body in rows_of(reader, start, end)]


def test_offsets_of_earlier_versions_have_no_ordinals(servers, readers):
    """The channel's cursor then says whether what is deleted was read; the next offset has both."""
    server = servers[0]
    start = {key(server): 150}
    server.first, server.committed = 202, 150

    reader = readers(server)
    end = reader.latestOffset(start, ALL)
    assert {"index": 204, "ordinal": 4} == end[key(server)]
    assert [b"1a", b"1b"] == [body for _, body in rows_of(reader, start, end)]
    assert [b"1a", b"1b"] == [body for _, body in rows_of(reader, start, {key(server): 204})]

    server.committed = 202
    for call in (
        lambda reader: reader.latestOffset(start, ALL),
        lambda reader: reader.partitions(start, {key(server): 204}),
    ):
        with pytest.raises(DataLossError, match="from index 150 to index 202, where"):
            call(readers(server))


# A drained run


def test_a_drained_run_ends_where_the_logs_ended_at_its_start(servers, readers):
    """Trigger availableNow: what is published later is left for the next run."""
    reader = readers()
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    servers[0].add([b"late"])
    end = reader.latestOffset(start, ReadMaxRows(7))
    end = reader.latestOffset(end, ReadMaxRows(7))

    assert {key(servers[0]): 204, key(servers[1]): 6} == indexes(end)
    assert end == reader.latestOffset(end, ReadMaxRows(7))


def test_a_drained_run_waits_for_an_nsqd(servers, readers):
    """It must not end without what it was to read; and not wait for ever either."""
    reader = readers(nsqdTimeoutMs="2000")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    servers[1].stop()
    threading.Timer(0.2, servers[1].start).start()
    latest = reader.latestOffset(start, ALL)
    while indexes(latest)[key(servers[1])] < 6:
        latest = reader.latestOffset(latest, ALL)

    servers[1].stop()
    with pytest.raises(UnreachableError, match=servers[1].address):
        while True:
            reader.latestOffset(latest, ALL)


# AUTH


def test_a_secret_that_was_good_once_is_not_given_up(servers, readers):
    """E_AUTH_FAILED at first is the author's to mend; later its nsqd is just out of reach."""
    first, second = servers
    failed = RemoteError("E_AUTH_FAILED", "AUTH failed")
    first.refuse["Attach"] = failed
    with pytest.raises(RemoteError, match="E_AUTH_FAILED"):
        readers().initialOffset()

    first.refuse.clear()
    reader = readers()
    start = reader.initialOffset()
    for name in ("Attach", "Ends", "CommitRange"):
        first.refuse[name] = failed
    first.add([b"new"])
    second.add([b"new"])
    reader.commit({**start, key(first): {"index": 101, "ordinal": 1}})
    heard = len(first.heard)
    deadline = time.monotonic() + 30
    while not any(isinstance(each, commands.Attach) for each in first.heard[heard:]):
        latest = reader.latestOffset(start, ALL)
        assert {**indexes(start), key(second): second.end} == indexes(latest)
        assert time.monotonic() < deadline
    reader.latestOffset(start, ALL)

    first.refuse.clear()
    while indexes(latest := reader.latestOffset(start, ALL))[key(first)] != first.end:
        assert time.monotonic() < deadline, latest


def test_a_permission_that_was_withdrawn_fails_the_query(servers, readers):
    """E_UNAUTHORIZED does not pass by itself: the query says so."""
    reader = readers()
    start = reader.initialOffset()
    gone = RemoteError("E_UNAUTHORIZED", 'AUTH failed for ATTACH on "clicks" "archive"')
    for name in ("Attach", "Ends"):
        servers[0].refuse[name] = gone

    deadline = time.monotonic() + 30
    with pytest.raises(RemoteError, match="E_UNAUTHORIZED"):
        while time.monotonic() < deadline:
            reader.latestOffset(start, ALL)
