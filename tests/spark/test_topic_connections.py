"""The connections of a query: nsqds that are unreachable, have moved, or refuse commands."""

import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from sparq.spark import options as option_limits
from sparq.spark.errors import DataLossError, SupersededError, UnreachableError
from tests.spark.range_server import RangeServer, at, key
from tests.spark.reading import Follower, indexes, rows_of
from tests.support.servers import free_port, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import wait_for

pytestmark = pytest.mark.usefixtures("no_long_pauses")

ALL = ReadAllAvailable()


def test_a_query_does_not_start_without_all_its_nsqds(servers, readers):
    """A query does not start without all its nsqds: the error names the unreachable one."""
    gone = f"127.0.0.1:{free_port()}"
    reader = readers(nsqd_tcp_addresses=f"{servers[0].address},{gone}", nsqdTimeoutMs="100")

    with pytest.raises(UnreachableError, match=gone):
        reader.initialOffset()


@pytest.mark.parametrize("drained", [False, True])
def test_an_unreachable_address_at_the_first_start_is_reported_soon(
    servers, readers, monkeypatch, drained
):
    """At its first start a query waits only BEGIN_TIMEOUT_MS for an nsqd, not a minute."""
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


def test_a_deleted_topic_of_a_discovered_nsqd_is_not_created_again(readers, tmp_path):
    """A query of a topic found by nsqlookupd leaves it deleted, and reads it when it is back.

    ATTACH creates a missing topic; only at an nsqd given by address is that wanted.
    """
    with spawn_nsqlookupd(tmp_path) as lookupd, spawn_nsqd(tmp_path, lookupds=(lookupd,)) as nsqd:
        nsqd.post("/pub?topic=clicks", b"x")
        wait_for(lambda: lookupd.request("GET", "/lookup?topic=clicks")[0] == 200)
        fleet = readers(nsqd_tcp_addresses="", lookupd_http_addresses=lookupd.http)._fleet
        fleet.wait_to_begin()
        [log] = fleet.ends()

        nsqd.post("/topic/delete?topic=clicks")
        wait_for(lambda: not fleet.ends())
        for _ in range(10):
            fleet.refresh()
            time.sleep(0.02)
        assert ([], []) == (nsqd.get_json("/stats?format=json")["topics"], fleet.out_of_reach)

        nsqd.post("/pub?topic=clicks", b"y")
        wait_for(lambda: fleet.refresh() or fleet.ends())
        assert log not in fleet.ends()


def test_a_channel_with_consumers_is_an_error(servers, readers):
    """A channel with consumers cannot be attached: nsqd's E_ATTACH_FAILED is raised."""
    text = "ATTACH failed channel clicks:archive has 2 consumers"
    servers[0].refuse["Attach"] = RemoteError("E_ATTACH_FAILED", text)

    with pytest.raises(RemoteError, match="has 2 consumers"):
        readers().initialOffset()


def test_a_newer_query_on_the_channel_ends_the_older(servers, readers):
    """The newest ATTACH has the channel; the older query's next commit raises SupersededError."""
    older, newer = readers(servers[1]), readers(servers[1])
    start = older.initialOffset()
    newer.initialOffset()
    end = older.latestOffset(start, ReadMaxRows(2))

    with pytest.raises(SupersededError, match="another query has taken over channel archive"):
        older.latestOffset(end, ALL)
    newer.commit(end)
    assert 2 == servers[1].committed


def test_another_program_at_a_moved_nsqds_old_address_does_not_end_a_query(
    servers, readers, tmp_path
):
    """A log that has moved is read although another program now answers at its old address.

    A test of recorded checkpoints failed occasionally when another nsqd used the port for HTTP.
    """
    first, _ = servers
    with spawn_nsqd(tmp_path) as nsqd, RangeServer(ranges=0) as plain:
        for stranger in (nsqd.http, plain.address):
            start, end = (at(first, index, stranger) for index in (201, 204))
            reader = readers(first)

            assert [b"1a", b"1b"] == [body for _, body in rows_of(reader, start, end)]
            assert [] == rows_of(reader, end, reader.latestOffset(end, ALL))


def test_another_program_at_an_nsqds_address_does_not_end_a_query(servers, readers):
    """Another program at an nsqd's address does not end the query: other logs are read."""
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


def test_an_unreachable_nsqd_keeps_its_offset(servers, readers):
    """An unreachable nsqd keeps its offset; when it is back it is attached and read from there."""
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


def test_an_nsqd_at_a_new_address_is_found_by_its_log(servers, readers):
    """A log is recognised by its id: the address in the offset is only a name."""
    start = at(servers[1], 2, "127.0.0.1:1")
    reader = readers(servers[1])
    end = reader.latestOffset(start, ALL)

    assert {f"127.0.0.1:1/{servers[1].log}": 6} == indexes(end)
    assert [("127.0.0.1:1", b"0c")] == rows_of(reader, start, end)[:1]


def test_a_topic_created_again_between_two_polls_is_another_log(readers, tmp_path):
    """The log of a topic that was created again joins, once the loss of the old one is reported.

    It is created again before the query asks: nsqd never answers that there is no such topic.
    """
    with spawn_nsqd(tmp_path) as nsqd:
        nsqd.post("/mpub?topic=clicks", b"old\nold")
        given = {"nsqd_tcp_addresses": nsqd.tcp, "maxOffsetsPerTrigger": "1"}
        strict = Follower(readers(**given, channel="strict"))
        lenient = Follower(readers(**given, channel="lenient", failOnDataLoss="false"))
        for follower in (strict, lenient):
            follower.read(1)
        nsqd.post("/topic/delete?topic=clicks")
        nsqd.post("/mpub?topic=clicks", b"new\nnew")

        with pytest.raises(DataLossError, match=r"of topic clicks .* no longer exists"):
            strict.step()
        lenient.read(3)
        assert [b"new", b"new", b"old"] == lenient.bodies("clicks")
        assert [True, False] == ["gone" in lenient.offset[log] for log in indexes(lenient.offset)]
        assert not lenient.step()
        assert 0 == nsqd.channel("clicks", "lenient")["depth"]


def test_auth_failed_is_retried_after_a_first_success(servers, readers):
    """E_AUTH_FAILED at the start is raised; later its nsqd counts as unreachable and is retried."""
    first, second = servers
    failed = RemoteError("E_AUTH_FAILED", "AUTH failed")
    first.refuse["Attach"] = failed
    with pytest.raises(RemoteError, match="E_AUTH_FAILED"):
        readers().initialOffset()

    first.refuse.clear()
    reader = readers()
    start = reader.initialOffset()
    for name in ("Attach", "ReadEnds", "CommitRange"):
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


def test_a_withdrawn_permission_fails_a_running_query(servers, readers):
    """E_UNAUTHORIZED fails a running query."""
    reader = readers()
    start = reader.initialOffset()
    gone = RemoteError("E_UNAUTHORIZED", 'AUTH failed for ATTACH on "clicks" "archive"')
    for name in ("Attach", "ReadEnds"):
        servers[0].refuse[name] = gone

    deadline = time.monotonic() + 30
    with pytest.raises(RemoteError, match="E_UNAUTHORIZED"):
        while time.monotonic() < deadline:
            reader.latestOffset(start, ALL)
