"""The source's side in the driver: what it answers to the calls that Spark makes, in their order.

No Spark session runs here; `test_spark.py` has one.
"""

import pickle
import threading
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from sparq.spark import fleet, source
from sparq.spark.decode import SCHEMA
from sparq.spark.errors import DataLossError, SparkNsqError, SupersededError, UnreachableError
from sparq.spark.options import OptionError, SourceOptions
from sparq.spark.source import NsqBatchReader, NsqStreamReader
from tests.servers import free_port
from tests.spark.range_server import RangeServer

ALL = ReadAllAvailable()


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch):
    """An idle query asks again at once."""
    monkeypatch.setattr(source, "NEWS_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(fleet, "RETRY_FIRST_SECONDS", 0.01)
    monkeypatch.setattr(fleet, "RETRY_MAX_SECONDS", 0.02)


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


def key(server: RangeServer) -> str:
    return f"{server.address}/{server.log}"


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


# Where a query begins


def test_a_query_begins_where_the_option_says(servers, readers):
    """Earliest, latest, where the channel stands, or an index or a word for each nsqd."""
    first, second = servers
    first.committed = 101
    named = f'{{"{first.address}": 201, "{key(second)}": "latest"}}'

    assert {key(first): 101, key(second): 0} == readers(startingOffsets="committed").initialOffset()
    assert {key(first): 0, key(second): 0} == readers().initialOffset()
    assert {key(first): 204, key(second): 6} == readers(startingOffsets="latest").initialOffset()
    assert {key(first): 201, key(second): 6} == readers(startingOffsets=named).initialOffset()


def test_a_query_may_begin_at_a_time(servers, readers):
    """startingTimestamp goes before startingOffsets."""
    reader = readers(startingTimestamp="1763687000000")

    assert {key(server): server.end for server in servers} == reader.initialOffset()
    asked = [heard for heard in servers[0].heard if isinstance(heard, commands.Ends)]
    assert 1763687000000000000 == asked[-1].value


def test_offsets_of_no_log_are_refused(servers, readers):
    """A name that is no nsqd's, or an index beyond the end, is a mistake to be told of."""
    with pytest.raises(OptionError, match="offsets are given for h:1"):
        readers(startingOffsets='{"h:1": 5}').initialOffset()
    with pytest.raises(OptionError, match="the offset 7 is beyond the end 6"):
        readers(startingOffsets=f'{{"{servers[1].address}": 7}}').initialOffset()


def test_an_offset_before_the_logs_first_message_is_data_loss(servers, readers):
    """What was deleted cannot be begun with."""
    servers[0].first = 102
    named = f'{{"{servers[0].address}": 50}}'

    with pytest.raises(DataLossError, match="begins at 102"):
        readers(startingOffsets=named).initialOffset()
    reader = readers(startingOffsets=named, failOnDataLoss="false")
    assert 102 == reader.initialOffset()[key(servers[0])]


def test_a_query_does_not_begin_without_one_of_its_nsqds(servers, readers):
    """Where an nsqd's log begins can't be known without it: the error names it."""
    gone = f"127.0.0.1:{free_port()}"
    reader = readers(nsqd_tcp_addresses=f"{servers[0].address},{gone}", nsqdTimeoutMs="100")

    with pytest.raises(UnreachableError, match=gone):
        reader.initialOffset()


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

    assert {key(servers[0]): 204, key(servers[1]): 6} == end == reader.reportLatestOffset()
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

    assert {key(servers[1]): 7} == reader.latestOffset(start, ALL)


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

    with pytest.raises(SupersededError, match="another query reads channel archive"):
        older.latestOffset(end, ALL)
    newer.commit(end)
    assert 2 == servers[1].committed


# nsqds come and go


def test_a_new_nsqd_joins_in_a_step_of_its_own(servers, readers, monkeypatch):
    """It enters the offset with its first index; the next batch reads it from there."""
    reader = readers(servers[0])
    start = reader.latestOffset(reader.initialOffset(), ALL)
    servers[1].committed = 6
    reader._fleet.remember([servers[1].address])
    joined = reader.latestOffset(start, ALL)

    assert start | {key(servers[1]): 0} == joined
    assert [] == reader.partitions(start, joined)
    assert 0 == servers[1].committed
    end = reader.latestOffset(joined, ALL)
    assert 6 == len(rows_of(reader, joined, end))


def test_an_nsqd_out_of_reach_keeps_its_offset(servers, readers):
    """The others go on; when it is back it is attached anew, and read where it was left."""
    first, second = servers
    reader = readers()
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    second.stop()
    end = reader.latestOffset(start, ALL)

    assert (204, start[key(second)]) == (end[key(first)], end[key(second)])

    second.start()
    latest = end
    while latest[key(second)] == end[key(second)]:
        latest = reader.latestOffset(end, ALL)
    assert 6 == latest[key(second)]
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

    assert {f"127.0.0.1:1/{servers[1].log}": 6} == end
    assert [("127.0.0.1:1", b"0c")] == rows_of(reader, start, end)[:1]


def test_a_log_that_was_replaced_is_data_loss(servers, readers):
    """A topic deleted and made anew, or another disk: never silently other data."""
    reader = readers(servers[1])
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    servers[1].stop()
    old = key(servers[1])
    servers[1].log = "ef" * 16
    servers[1].start()

    with pytest.raises(DataLossError, match=r"the log cdcd.* is gone"):
        while True:
            reader.latestOffset(start, ALL)

    follower = readers(servers[1], failOnDataLoss="false")
    joined = follower.latestOffset(start, ALL)
    assert {old: 2, key(servers[1]): 0} == joined
    assert {old: 2, key(servers[1]): 6} == follower.latestOffset(joined, ALL)


def test_messages_deleted_before_they_were_read_are_data_loss(servers, readers):
    """A channel that stands behind deleted messages lacks them; a mere gap of indexes is none."""
    server = servers[0]
    start = {key(server): 50}
    server.first, server.committed = 102, 50
    assert 204 == readers(server).latestOffset(start, ALL)[key(server)]

    server.committed = 102
    with pytest.raises(DataLossError, match="from 50 on are deleted"):
        readers(server).latestOffset(start, ALL)
    with pytest.raises(DataLossError, match="from 50 on are deleted"):
        readers(server).partitions(start, {key(server): 204})


# A drained run


def test_a_drained_run_ends_where_the_logs_ended_at_its_start(servers, readers):
    """Trigger availableNow: what is published later is left for the next run."""
    reader = readers()
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    servers[0].add([b"late"])
    end = reader.latestOffset(start, ReadMaxRows(7))
    end = reader.latestOffset(end, ReadMaxRows(7))

    assert {key(servers[0]): 204, key(servers[1]): 6} == end
    assert end == reader.latestOffset(end, ReadMaxRows(7))


def test_a_drained_run_waits_for_an_nsqd(servers, readers):
    """It must not end without what it was to read; and not wait for ever either."""
    reader = readers(nsqdTimeoutMs="2000")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    servers[1].stop()
    threading.Timer(0.2, servers[1].start).start()
    latest = reader.latestOffset(start, ALL)
    while latest[key(servers[1])] < 6:
        latest = reader.latestOffset(latest, ALL)

    servers[1].stop()
    with pytest.raises(UnreachableError, match=servers[1].address):
        while True:
            reader.latestOffset(latest, ALL)


# Partitions


def test_a_range_is_cut_into_equal_parts(servers, readers):
    """minPartitions and maxRecordsPerPartition cut; rows and their order stay the same."""
    start, end = {key(servers[1]): 0}, {key(servers[1]): 6}
    for options, count in (
        ({"minPartitions": "3"}, 3),
        ({"maxRecordsPerPartition": "4"}, 2),
        ({"minPartitions": "99"}, 6),
        ({}, 1),
    ):
        reader = readers(servers[1], **options)
        cut = [partition.value for partition in reader.partitions(start, end)]

        assert count == len(cut)
        assert [6 // count] * count == [part.messages for part in cut]
        assert 6 == len(rows_of(reader, start, end))


def test_a_planned_range_waits_for_its_nsqd(servers, readers):
    """The restart of an nsqd within the time of the option fails nothing."""
    reader = readers(servers[1])
    servers[1].stop()
    threading.Timer(0.2, servers[1].start).start()

    assert 6 == len(rows_of(reader, {key(servers[1]): 0}, {key(servers[1]): 6}))


# A batch read


def batch_reader(*servers: RangeServer, **options: str) -> NsqBatchReader:
    given = {
        "topic": "clicks",
        "nsqd_tcp_addresses": ",".join(server.address for server in servers),
        "nsqdTimeoutMs": "10000",
    }
    return NsqBatchReader(SourceOptions.of(given | options, stream=False), SCHEMA.names)


def batch_rows(reader: NsqBatchReader) -> list[bytes]:
    return [
        body
        for partition in reader.partitions()
        for rows in reader.read(partition)
        for body in rows.column("body").to_pylist()
    ]


def test_a_batch_reads_everything_and_attaches_to_nothing(servers):
    """No channel is created, held or moved by a batch read."""
    assert 10 == len(batch_rows(batch_reader(*servers)))
    assert not any(isinstance(heard, commands.Attach) for heard in servers[0].heard)


def test_a_batch_may_be_bounded(servers):
    """startingOffsets and endingOffsets cut out what lies between."""
    address = servers[1].address
    reader = batch_reader(
        servers[1],
        startingOffsets=f'{{"{address}": 1}}',
        endingOffsets=f'{{"{key(servers[1])}": 4}}',
    )

    assert [b"0b", b"0c", b"1a"] == batch_rows(reader)


def test_a_topic_that_is_nowhere_is_an_error(servers):
    """One nsqd without the topic is skipped; none with it is a mistake to be told of."""
    servers[0].refuse["Ends"] = RemoteError("E_RANGE_FAILED", "ENDS failed topic not found")
    assert 6 == len(batch_rows(batch_reader(*servers)))

    with pytest.raises(SparkNsqError, match="no nsqd has a topic clicks"):
        batch_reader(servers[0]).partitions()


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
    reader.commit({**start, key(first): 101})
    heard = len(first.heard)
    deadline = time.monotonic() + 30
    while not any(isinstance(each, commands.Attach) for each in first.heard[heard:]):
        assert {**start, key(second): second.end} == reader.latestOffset(start, ALL)
        assert time.monotonic() < deadline
    reader.latestOffset(start, ALL)

    first.refuse.clear()
    while (latest := reader.latestOffset(start, ALL))[key(first)] != first.end:
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
