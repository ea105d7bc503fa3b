"""What happens to nsqds and topics while a query runs: docs/spark.md has the table.

Real nsqds and nsqlookupd are called as Spark calls the source.
"""

import re
import shutil
import time

import pytest

from sparq.client.range_reader import RangeReader
from sparq.spark import connections, source
from sparq.spark.connections import NsqdDiscovery, TopicAt
from sparq.spark.errors import DataLossError, UnreachableError
from sparq.spark.offsets import TopicSelection, parse_key
from sparq.spark.options import ClusterOptions, SourceOptions
from sparq.spark.ranges import SCHEMA
from sparq.spark.source import NsqBatchReader, NsqStreamReader
from tests.spark.reading import Follower, indexes
from tests.support.own_topic import own_topic
from tests.support.published import publish
from tests.support.servers import NsqdServer, spawn_nsqd, spawn_nsqlookupd, start_first
from tests.support.waiting import wait_for


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch):
    """Shorten all intervals of the query."""
    monkeypatch.setattr(source, "NEWS_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(source, "MOVING_SECONDS", 1.0)
    monkeypatch.setattr(connections, "RETRY_FIRST_SECONDS", 0.01)
    monkeypatch.setattr(connections, "RETRY_MAX_SECONDS", 0.05)
    monkeypatch.setattr(connections, "INTERVAL_SECONDS", 0.05)


@pytest.fixture
def nsqd(tmp_path, lookupd):
    """An nsqd that the test kills, stops or moves."""
    with spawn_nsqd(tmp_path, lookupds=(lookupd,), name="hurt") as running:
        yield running


@pytest.fixture
def both(lookupd, steady, nsqd):
    """The daemons that most tests need."""
    return lookupd, steady, nsqd


@pytest.fixture
def prefix(request):
    """The prefix of the test's topics."""
    return own_topic(request) + "."


@pytest.fixture
def made(lookupd):
    """Return a function that creates readers; they are closed after the test."""
    readers = []

    def make(offset=None, **given: str) -> Follower:
        options = {
            "channel": "spark",
            "lookupd_http_addresses": lookupd.http,
            "startingOffsets": "earliest",
            "nsqdTimeoutMs": "10000",
            **given,
        }
        options = {name: value for name, value in options.items() if value}
        reader = NsqStreamReader(SourceOptions.of(options, stream=True), SCHEMA.names)
        readers.append(reader)
        return Follower(reader, offset)

    yield make
    for reader in readers:
        reader.stop()


def is_known(lookupd, *places: tuple[NsqdServer, str]) -> None:
    """Wait until nsqlookupd lists these topics at these nsqds."""
    expected = {TopicAt(nsqd.tcp, topic) for nsqd, topic in places}
    found = NsqdDiscovery(
        ClusterOptions((), (lookupd.http,), 1000), TopicSelection((), ".*", several=True)
    )
    wait_for(lambda: expected <= set(found.found()))


def batch(**given: str) -> list[tuple]:
    """Return (topic, body) of each row of a batch read, sorted."""
    reader = NsqBatchReader(SourceOptions.of(given, stream=False), ["topic", "body"])
    return sorted(
        row
        for part in reader.partitions()
        for rows in reader.read(part)
        for row in zip(*(column.to_pylist() for column in rows.columns), strict=True)
    )


# What is read


@pytest.mark.parametrize("by", ["topics", "topicsPattern"])
def test_topics_of_all_nsqds_are_read_together(both, made, prefix, by):
    """Topics of all nsqds are read in one query; rows and offsets name the topic.

    Topics that do not match are left alone.
    """
    lookupd, steady, nsqd = both
    first, second = prefix + "a", prefix + "b"
    publish(steady, first, b"1", b"2")
    publish(steady, second, b"3")
    publish(nsqd, second, b"4")
    publish(nsqd, "other", b"5")
    publish(nsqd, prefix + "c#ephemeral", b"6")
    is_known(lookupd, (steady, first), (steady, second), (nsqd, second))
    given = {"topics": f"{first},{second}", "topicsPattern": re.escape(prefix) + ".*"}
    follower = made(**{by: given[by]})
    follower.read(4)

    assert sorted(follower.rows) == sorted(
        [
            (first, steady.tcp, b"1"),
            (first, steady.tcp, b"2"),
            (second, steady.tcp, b"3"),
            (second, nsqd.tcp, b"4"),
        ]
    )
    keys = map(parse_key, indexes(follower.offset))
    assert {(steady.tcp, first), (steady.tcp, second), (nsqd.tcp, second)} == {
        (key.address, key.topic) for key in keys
    }
    assert [(first, b"1"), (first, b"2"), (second, b"3"), (second, b"4")] == batch(
        **{by: given[by]}, lookupd_http_addresses=lookupd.http
    )
    follower.step()
    assert [0, 0] == [each.channel(second, "spark")["depth"] for each in (steady, nsqd)]
    assert {} == nsqd.channel("other", "spark")
    assert {} == nsqd.channel(prefix + "c#ephemeral", "spark")


# What is read again


def test_an_offset_is_enough_to_read_a_batch_again(tmp_path, steady, made, prefix):
    """An offset is enough to read a batch again, even if nsqlookupd knows nothing any more."""
    first, second = prefix + "a", prefix + "b"
    publish(steady, first, b"1", b"2")
    publish(steady, second, b"3")
    follower = made(topicsPattern=re.escape(prefix) + ".*", maxOffsetsPerTrigger="2")
    follower.read(3)
    with spawn_nsqlookupd(tmp_path) as empty:
        given = {"lookupd_http_addresses": empty.http, "topicsPattern": re.escape(prefix) + ".*"}
        for start, end in follower.batches:
            again = made(offset=start, **given)
            assert follower.read_range(start, end) == again.read_range(start, end)
        again = made(offset=follower.batches[0][0], **given)
        again.read(3)

    assert sorted(follower.rows) == sorted(again.rows)


def test_a_checkpoint_works_with_other_topics(lookupd, steady, made, prefix, caplog):
    """A checkpoint remains usable when the selected topics change.

    Nothing is read twice, and a topic that is no longer selected keeps its position.
    """
    first, second = prefix + "a", prefix + "b"
    publish(steady, first, b"1")
    publish(steady, second, b"2")
    one = made(topic=first)
    one.read(1)
    assert {""} == {parse_key(key).topic for key in indexes(one.offset)}
    one.reader.stop()

    publish(steady, first, b"3")
    several = made(offset=one.offset, topics=f"{first},{second}")
    several.read(2)
    assert ([b"3"], [b"2"]) == (several.bodies(first), several.bodies(second))
    assert indexes(one.offset).keys() < indexes(several.offset).keys()
    start, end = several.batches[-1]
    several.reader.stop()

    publish(steady, first, b"4")
    publish(steady, second, b"5")
    one = made(offset=several.offset, topic=first)
    assert sorted(several.read_range(start, end)) == sorted(one.read_range(start, end))
    one.read(1)
    kept = {key for key in indexes(one.offset) if parse_key(key).topic == second}
    assert 1 == len(kept)
    assert 1 == sum(f"no longer name topic {second}" in line for line in caplog.messages)
    assert {several.offset[key]["index"] for key in kept} == {
        one.offset[key]["index"] for key in kept
    }
    one.reader.stop()

    again = made(offset=one.offset, topicsPattern=re.escape(prefix) + ".*")
    again.read(1)
    assert [b"5"] == again.bodies(second)


# Topics and nsqds come and go


@pytest.mark.parametrize("starting", ["committed", "latest", "earliest"])
def test_a_topic_that_appears_is_read_from_its_first_message(
    steady, made, lookupd, prefix, starting
):
    """A new topic is read from its first message, even if another channel has already taken it."""
    publish(steady, prefix + "old", b"0")
    is_known(lookupd, (steady, prefix + "old"))
    follower = made(topicsPattern=re.escape(prefix) + ".*", startingOffsets=starting)
    publish(steady, prefix + "new", b"1", b"2", channel="first")
    publish(steady, prefix + "old", b"3")
    follower.read(3 + (starting == "earliest"))

    assert [b"1", b"2"] == follower.bodies(prefix + "new")
    follower.step()
    assert 0 == steady.channel(prefix + "new", "spark")["depth"]


@pytest.mark.parametrize("fail", [True, False])
def test_a_deleted_topic_is_not_recreated(both, made, prefix, fail, caplog):
    """A query does not recreate a deleted topic; the deletion is reported once as a loss."""
    lookupd, steady, _ = both
    gone, kept = prefix + "gone", prefix + "kept"
    publish(steady, gone, b"1")
    publish(steady, kept, b"2")
    is_known(lookupd, (steady, gone), (steady, kept))
    follower = made(topicsPattern=re.escape(prefix) + ".*", failOnDataLoss=str(fail).lower())
    follower.read(2)
    steady.post(f"/topic/delete?topic={gone}")
    publish(steady, kept, b"3")
    said = f"all messages from .* of topic {gone} at nsqd {steady.tcp} are lost: its log"
    if fail:
        with pytest.raises(DataLossError, match=said):
            while True:
                follower.step()
    else:
        follower.read(3)
        wait_for(lambda: follower.step() and "gone" in str(follower.offset.values()))
        assert 1 == sum(bool(re.search(said, line)) for line in caplog.messages)
    assert [kept] == [
        topic["topic_name"]
        for topic in steady.get_json("/stats?format=json")["topics"]
        if topic["topic_name"].startswith(prefix)
    ]
    if not fail:
        publish(steady, gone, b"4", b"5", channel="first")
        follower.read(5)
        assert [b"1", b"4", b"5"] == follower.bodies(gone)


def test_an_nsqd_that_returns_empty_is_a_loss_for_each_topic(both, made, prefix, caplog):
    """An nsqd that returns empty is one reported loss per topic; its new messages are read."""
    lookupd, steady, nsqd = both
    first, second = prefix + "a", prefix + "b"
    for topic in (first, second):
        publish(nsqd, topic, b"1")
        publish(steady, topic, b"2")
        is_known(lookupd, (nsqd, topic), (steady, topic))
    failing, going = (
        made(topics=f"{first},{second}", channel=fail, failOnDataLoss=fail)
        for fail in ("true", "false")
    )
    for follower in (failing, going):
        follower.read(4)
    nsqd.kill9()
    for path in nsqd.folder.iterdir():
        if path != nsqd.log:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    nsqd.start()
    with pytest.raises(
        DataLossError, match=rf"topic {prefix}. at nsqd {nsqd.tcp} are lost: its log"
    ):
        while True:
            failing.step()
    for topic in (first, second):
        publish(nsqd, topic, b"3", channel="false")
    going.read(6)

    assert [b"1", b"2", b"3"] == going.bodies(first) == going.bodies(second)
    lost = [line for line in caplog.messages if "continues without them" in line]
    assert 2 == len(lost)
    for topic in (first, second):
        assert 1 == sum(f"of topic {topic} at nsqd {nsqd.tcp} are lost" in line for line in lost)


def test_an_nsqd_that_moves_is_found_by_its_logs(lookupd, nsqd, made, prefix):
    """An nsqd that moves to another address continues, and its offset keys stay the same."""
    first, second = prefix + "a", prefix + "b"
    for topic in (first, second):
        publish(nsqd, topic, b"1")
        is_known(lookupd, (nsqd, topic))
    follower = made(topicsPattern=re.escape(prefix) + ".*")
    follower.read(2)
    nsqd.terminate()
    moved = NsqdServer("sparq.nsqd", nsqd.folder, nsqd.flags)
    with moved:
        start_first(moved)
        for topic in (first, second):
            publish(moved, topic, b"2")
        follower.read(4)
        follower.step()

    assert {(first, nsqd.tcp, b"2"), (second, nsqd.tcp, b"2")} == set(follower.rows[2:])
    assert {nsqd.tcp} == {parse_key(key).address for key in indexes(follower.offset)}


@pytest.mark.parametrize("fail", [True, False])
def test_a_run_waits_for_all_topics_of_an_unreachable_nsqd(both, made, prefix, fail):
    """A run of available messages does not end without an unreachable nsqd's topics.

    It fails with failOnDataLoss; without it, it continues.
    """
    lookupd, steady, nsqd = both
    first, second = prefix + "a", prefix + "b"
    for topic in (first, second):
        publish(nsqd, topic, b"1")
        publish(steady, topic, b"2")
        is_known(lookupd, (nsqd, topic), (steady, topic))
    offset = made(topics=f"{first},{second}", startingOffsets="earliest").offset
    nsqd.kill9()
    given = {"failOnDataLoss": str(fail).lower(), "nsqdTimeoutMs": "500"}
    follower = made(topics=f"{first},{second}", offset=offset, **given)
    follower.reader.prepareForTriggerAvailableNow()
    if fail:
        with pytest.raises(UnreachableError, match=f"nsqd {nsqd.tcp}.*option lostNsqds"):
            follower.step()
    else:
        follower.read(2)
        assert not follower.step()


def test_an_nsqd_that_is_lost_for_good_is_given_up_by_name(both, made, prefix, caplog):
    """With lostNsqds a query goes on without an nsqd; its unread messages are counted as lost."""
    lookupd, steady, nsqd = both
    topic = prefix + "a"
    publish(steady, topic, b"1", b"2")
    publish(nsqd, topic, b"3", b"4", b"5")
    is_known(lookupd, (steady, topic), (nsqd, topic))
    given = {"topic": topic, "nsqdTimeoutMs": "500", "maxOffsetsPerTrigger": "2"}
    follower = made(**given)
    follower.read(2)
    nsqd.kill9()
    follower.reader.prepareForTriggerAvailableNow()
    with pytest.raises(UnreachableError, match=f"nsqd {nsqd.tcp}.*option lostNsqds"):
        follower.step()
    follower.reader.stop()

    left = made(**given, offset=follower.offset, lostNsqds=nsqd.tcp)
    read = follower.bodies(topic)
    left.read(2 - sum(body in read for body in (b"1", b"2")))

    def lost() -> set[str]:
        left.step()
        pattern = r"(\d+)(?:,| messages) of topic .* lostNsqds gives"
        return {found[1] for line in caplog.messages if (found := re.search(pattern, line))}

    (count,) = wait_for(lost)
    assert [b"1", b"2"] == sorted({*read, *left.bodies(topic)} - {b"3", b"4", b"5"})
    assert 5 == len(read) + len(left.rows) + int(count)


def test_a_tombstoned_topic_is_still_read(lookupd, steady, made, prefix):
    """A tombstoned topic is still read by a query with a checkpoint, but not by a new query."""
    topic = prefix + "a"
    publish(steady, topic, b"1")
    is_known(lookupd, (steady, topic))
    given = {"topicsPattern": re.escape(prefix) + ".*"}
    follower = made(**given)
    node = f"127.0.0.1:{steady.http_port}"
    lookupd.post(f"/topic/tombstone?topic={topic}&node={node}")
    follower.read(1)
    publish(steady, topic, b"2")
    assert {} == made(**given, channel="another").offset
    again = made(**given, offset=follower.offset)
    again.read(1)

    assert [b"2"] == again.bodies(topic)


def test_a_silent_nsqd_is_not_asked_for_each_topic(lookupd, steady, made, prefix, monkeypatch):
    """The timeout of an unresponsive nsqd is awaited once per refresh, not once per topic."""
    topics = [prefix + name for name in "abc"]
    for topic in topics:
        publish(steady, topic, b"1")
        is_known(lookupd, (steady, topic))
    follower = made(topics=",".join(topics))
    follower.read(3)
    nsqds, asked = follower.reader._fleet, []

    def silent(_reader, topic, *_channel):
        asked.append(topic)
        raise TimeoutError("timed out")

    with monkeypatch.context() as patched:
        for question in ("ends", "attach"):
            patched.setattr(RangeReader, question, silent)
        assert {} == nsqds.ends()
        assert 1 == len(asked)
        wait_for(lambda: all(time.monotonic() >= one.retry_at for one in nsqds._members.values()))
        nsqds.refresh()
        assert 2 == len(asked)
    for topic in topics:
        publish(steady, topic, b"2")
    follower.read(6)
