"""Range reading: the log is read by index ranges, and the channel stores the position."""

from __future__ import annotations

import json
import struct

from sparq.protocol import commands
from tests.broker.harness import BrokerHarness
from tests.broker.ranges import ask, attach, read


def test_attach_read_commit(harness: BrokerHarness) -> None:
    """A range reader attaches, reads and commits.

    The depth is the number of uncommitted messages, also after a crash.
    """
    harness.publish("t", b"1", b"2")
    harness.publish("t", b"3")
    reader, attached = attach(harness, "spark")
    first, end = attached["first"], attached["end"]
    assert (attached["committed"] <= first, end - first) == (True, 3)
    assert attached["created"]
    attached = ask(reader, commands.attach("t", "spark"))
    assert not attached["created"]  # its position may be some client's choice
    assert (attached["committed_ordinal"], attached["end_ordinal"]) == (0, 3)
    assert harness.channel("t", "spark").depth == 3

    assert read(reader, attached["log"], first, end, 1 << 20) == (end, 0, [b"1", b"2", b"3"])
    reader.say(commands.commit("t", "spark", attached["epoch"], first + 2))

    assert reader.answers() == [b"OK"]
    assert harness.channel("t", "spark").depth == 1
    harness.crash()
    assert harness.channel("t", "spark").depth == 1
    again = harness.connect()
    epoch = ask(again, commands.attach("t", "spark"))["epoch"]
    again.say(commands.commit("t", "spark", epoch, end))
    again.say(commands.commit("t", "spark", epoch, first + 1))
    assert again.answers() == [b"OK", b"OK"]
    assert harness.channel("t", "spark").depth == 2


def test_a_read_stops_at_its_size(harness: BrokerHarness) -> None:
    """A READ returns at least one batch, and the index to continue from.

    All parts are the whole range.
    """
    for n in range(10):
        harness.publish("t", b"%d" % n * 400)
    reader, attached = attach(harness, "spark")
    at, end = attached["first"], attached["end"]
    found: list[bytes] = []
    steps = 0
    while at < end:
        at, _, bodies = read(reader, attached["log"], at, end, 1000)
        found += bodies
        steps += 1

    assert found == [b"%d" % n * 400 for n in range(10)]
    assert 2 <= steps <= 10


def test_a_channel_has_subscribers_or_a_range_reader(harness: BrokerHarness) -> None:
    """A channel has subscribers or a range reader, never both.

    The channel is free again when the reader disconnects.
    """
    reader, _ = attach(harness)
    refused = harness.consumer("t", "c")
    assert refused.answers() == [b"E_SUB_FAILED SUB failed channel t:c is held by a range reader"]
    assert refused.session.closing
    refused.close()

    reader.close()
    consumer = harness.consumer("t", "c")
    assert consumer.answers() == [b"OK"]
    late = harness.connect()
    late.say(commands.attach("t", "c"))

    assert late.answers() == [b"E_ATTACH_FAILED ATTACH failed channel t:c has 1 consumers"]
    assert not late.session.closing


def test_the_newest_attach_wins(harness: BrokerHarness) -> None:
    """The newest ATTACH holds the channel: an older reader's COMMIT gets E_COMMIT_FAILED.

    Epochs increase across a restart.
    """
    harness.publish("t", b"x")
    (old, first), (new, second) = attach(harness), attach(harness)
    assert second["epoch"] > first["epoch"]

    old.say(commands.commit("t", "c", first["epoch"], first["end"]))
    new.say(commands.commit("t", "c", second["epoch"], second["end"]))

    superseded = f"COMMIT failed epoch {first['epoch']} was superseded by {second['epoch']}"
    assert old.answers() == [f"E_COMMIT_FAILED {superseded}".encode()]
    assert new.answers() == [b"OK"]
    old.close()
    assert harness.channel("t", "c").range_reader == "10.0.0.1:5555"
    harness.advance(0.001)
    harness.crash()
    third = attach(harness)[1]
    assert third["epoch"] > second["epoch"]
    assert third["committed"] == second["end"]


def test_commit_refusals(harness: BrokerHarness) -> None:
    """COMMIT is refused for unknown channels, indexes outside the log, and unknown epochs."""
    harness.publish("t", b"x")
    reader, attached = attach(harness)
    epoch, first, end = attached["epoch"], attached["first"], attached["end"]
    reader.say(
        commands.commit("t", "nobody", epoch, first)
        + commands.commit("t", "c", epoch, first - 1)
        + commands.commit("t", "c", epoch, end + 1)
        + commands.commit("t", "c", epoch + 1, end)
    )
    assert [answer.decode() for answer in reader.answers()] == [
        "E_COMMIT_FAILED COMMIT failed channel t:nobody not found",
        f"E_COMMIT_FAILED COMMIT failed index {first - 1} is before the first index, {first}",
        f"E_COMMIT_FAILED COMMIT failed index {end + 1} is beyond the end, {end}",
        f"E_COMMIT_FAILED COMMIT failed epoch {epoch + 1} is not attached",
    ]


def test_ends_returns_the_first_and_end_index(harness: BrokerHarness) -> None:
    """ENDS returns the log's first and end index.

    Options add the first index at or after a time, or the index N messages further on.
    """
    times = []
    for n in range(5):
        times.append(harness.clock.wall_ns)
        harness.publish("t", b"%d" % n, b"-")
        harness.advance(10.0)
    client = harness.connect()
    harness.consumer("t", "c")
    ends = ask(client, commands.ends("t"))
    first = ends["first"]
    assert (ends["end"], ends["first_ordinal"], ends["end_ordinal"]) == (first + 10, 0, 10)

    at = ask(client, commands.ends("t", "time", times[2] + 1))
    assert (at["at"], at["at_ordinal"]) == (first + 6, 6)
    late = ask(client, commands.ends("t", "time", times[4] + 1))
    assert late["at"] == ends["end"]
    after = ask(client, commands.ends("t", "after", first + 1, 4))
    assert (after["at"], after["at_ordinal"], after["from_ordinal"]) == (first + 5, 5, 1)
    beyond = ask(client, commands.ends("t", "after", first, 999))
    assert beyond["at"] == ends["end"]


def test_ends_returns_how_far_a_size_reaches(harness: BrokerHarness) -> None:
    """ENDS with a size returns how far that many bytes reach, in whole extents, at least one.

    It also returns their size.
    """
    for n in range(4):
        harness.publish("t", bytes([n]) * 70_000, b"-")
    client = harness.connect()
    harness.consumer("t", "c")
    ends = ask(client, commands.ends("t"))
    first, end = ends["first"], ends["end"]
    _, _, bodies = read(client, ends["log"], first, end, 1)
    assert len(bodies) == 2  # each publish is an extent of its own

    found = [
        ask(client, commands.ends("t", "within", first + begin, size))
        for begin, size in ((0, 0), (0, 140_000), (0, 150_000), (1, 999_999), (8, 5))
    ]
    assert [2, 2, 4, 8, 8] == [answer["at"] - first for answer in found]
    assert [2, 2, 4, 8, 8] == [answer["at_ordinal"] for answer in found]
    assert [0, 0, 0, 1, 8] == [answer["from_ordinal"] for answer in found]
    one = found[0]["size"]
    assert 70_001 < one < 70_300
    assert [one, one, 2 * one, 4 * one, 0] == [answer["size"] for answer in found]


def test_ends_that_needs_the_disk_keeps_its_place_among_the_replies() -> None:
    """An ENDS that needs the disk keeps its position among the replies."""
    harness = BrokerHarness(cache_bytes=1)
    for n in range(50):
        harness.publish("t", b"%d" % n * 100)
        harness.advance(1.0)
    harness.consumer("t", "c")
    harness.crash()
    client = harness.connect()
    begin = ask(client, commands.ends("t"))

    client.say(
        commands.ends("t", "time", harness.clock.wall_ns - 20_000_000_000) + commands.ends("nope")
    )

    found, refused = client.answers()
    assert json.loads(found)["at_ordinal"] == 30
    assert refused == b"E_RANGE_FAILED ENDS failed topic nope not found"
    assert begin["end_ordinal"] == 50


def test_read_refusals(harness: BrokerHarness) -> None:
    """READ is refused for another log's id and for ranges that the log does not hold."""
    harness.publish("t", b"x")
    client = harness.connect()
    harness.consumer("t", "c")
    ends = ask(client, commands.ends("t"))
    log, first, end = ends["log"], ends["first"], ends["end"]
    other = "0" * 32
    client.say(
        commands.read("t", other, first, end, 100)
        + commands.read("t", log, first - 1, end, 100)
        + commands.read("t", log, first, end + 1, 100)
        + commands.read("nope", log, first, end, 100)
    )

    assert [answer.decode() for answer in client.answers()] == [
        f"E_RANGE_FAILED READ failed log {log} is not {other}",
        f"E_RANGE_FAILED READ failed index {first - 1} is before the first index, {first}",
        f"E_RANGE_FAILED READ failed index {end + 1} is beyond the end, {end}",
        "E_RANGE_FAILED READ failed topic nope not found",
    ]


def test_range_readers_see_only_messages_before_the_mark(harness: BrokerHarness) -> None:
    """Range readers see messages before P only: nothing new while the topic is paused.

    A pause of the channel changes nothing for them.
    """
    reader, before = attach(harness)
    harness.broker.pause_topic("t", True, harness.clock.now())
    harness.broker.pause_channel("t", "c", True, harness.clock.now())
    harness.publish("t", b"x")
    assert ask(reader, commands.ends("t"))["end"] == before["end"]

    harness.act("pause_topic", "t", False)

    ends = ask(reader, commands.ends("t"))
    assert ends["end"] - ends["first"] == 1
    reader.say(commands.commit("t", "c", before["epoch"], ends["end"]))
    assert [b"OK"] == reader.answers()
    assert 0 == harness.channel("t", "c").depth


def test_a_range_reader_reads_deferred_publishes_at_their_log_position(
    harness: BrokerHarness,
) -> None:
    """A range reader reads deferred publishes at their position in the log, due or not.

    A later subscriber does not get them again after the COMMIT.
    """
    reader, _ = attach(harness)
    harness.publish("t", b"1")
    harness.publish("t", b"2", defer_ms=60_000)
    attached = ask(reader, commands.attach("t", "c"))
    first, end = attached["first"], attached["end"]
    assert read(reader, attached["log"], first, end, 1 << 20)[2] == [b"1", b"2"]
    reader.say(commands.commit("t", "c", attached["epoch"], end))
    reader.close()
    consumer = harness.consumer("t", "c", rdy=10)
    harness.pass_time(61.0)

    assert consumer.messages() == []


def test_a_message_that_became_due_under_a_range_reader_reaches_a_subscriber(
    harness: BrokerHarness,
) -> None:
    """A message that became due under a range reader reaches a later subscriber."""
    reader, _ = attach(harness)
    harness.publish("t", b"1")
    harness.publish("t", b"2", defer_ms=1000)
    harness.pass_time(2.0)
    reader.close()

    consumer = harness.consumer("t", "c", rdy=10)

    assert sorted(consumer.bodies()) == [b"1", b"2"]


def test_attach_takes_over_unfinished_messages_of_subscribers(harness: BrokerHarness) -> None:
    """After a change to range mode, the messages that subscribers left unfinished are read."""
    consumer = harness.consumer("t", "c", rdy=4)
    harness.publish("t", *[b"%d" % n for n in range(6)])
    messages = consumer.messages()
    consumer.finish([messages[0], messages[2]])
    consumer.close()

    attached = attach(harness)[1]

    assert attached["committed"] == messages[1].index


def test_attach_and_ends_are_refused_for_an_ephemeral_topic(harness: BrokerHarness) -> None:
    """ATTACH and ENDS are refused for an ephemeral topic."""
    client = harness.connect()
    client.say(commands.pub("t#ephemeral", b"x"))
    client.say(commands.attach("t#ephemeral", "c") + commands.ends("t#ephemeral"))

    assert client.answers() == [
        b"OK",
        b"E_ATTACH_FAILED ATTACH failed topic t#ephemeral has no log",
        b"E_RANGE_FAILED ENDS failed topic t#ephemeral has no log",
    ]


def test_a_read_waits_until_the_previous_answer_is_taken(harness: BrokerHarness) -> None:
    """A client has one READ answer in memory; further READs wait until it has taken it.

    All answers arrive in order.
    """
    for n in range(4):
        harness.publish("t", b"%d" % n * 1000)
    client, attached = attach(harness)
    first, end = attached["first"], attached["end"]
    for at in range(first, end):
        client.say(commands.read("t", attached["log"], at, end, 1), turn=False)
    tasks = harness.broker.end_turn(harness.clock.now())
    assert len(tasks) == 1
    harness.run(tasks)
    client.say(commands.read("t", attached["log"], first, end, 1), turn=False)
    assert harness.broker.end_turn(harness.clock.now()) == []
    client.session.paused_writing = True
    client.collect()
    assert harness.broker.end_turn(harness.clock.now()) == []

    client.session.paused_writing = False
    harness.broker.writable(client.session)
    harness.turn()

    starts = [struct.unpack_from(">q", data)[0] for kind, data in client.take_frames()]
    assert starts == [first + 1, first + 2, first + 3, first + 4, first + 1]


def test_a_waiting_read_of_a_deleted_range_is_refused(harness: BrokerHarness) -> None:
    """A waiting READ whose range is deleted meanwhile is refused, in its place in the replies."""
    harness = BrokerHarness(max_bytes_per_file=2000)
    reader, attached = attach(harness)
    for n in range(10):
        harness.publish("t", b"%d" % n * 900)
    ends = ask(reader, commands.ends("t"))
    first, end = ends["first"], ends["end"]
    reader.session.paused_writing = True
    reader.say(commands.read("t", ends["log"], first, end, 100))
    for index in (end - 1, end):
        harness.connect().say(commands.commit("t", "c", attached["epoch"], index))
    harness.pass_time(3.0)
    reader.session.paused_writing = False
    harness.broker.writable(reader.session)
    harness.turn()

    ((_, refused),) = reader.take_frames()
    assert refused.startswith(b"E_RANGE_FAILED READ failed index %d is before" % first)


def test_damage_in_a_range_is_counted() -> None:
    """A READ across a damaged batch reports the number of missing messages."""
    harness = BrokerHarness(cache_bytes=1)
    for n in range(3):
        harness.publish("t", b"%d-a" % n, b"%d-b" % n)
    harness.consumer("t", "c")
    (path,) = [path for path in harness.disk.paths() if path.endswith(".log")]
    data = harness.disk.data(path)
    data[data.index(b"1-a")] ^= 1
    client = harness.connect()
    ends = ask(client, commands.ends("t"))
    first, end = ends["first"], ends["end"]

    after, lost, bodies = read(client, ends["log"], first, end, 1 << 20)

    assert (after, lost, bodies) == (end, 2, [b"0-a", b"0-b", b"2-a", b"2-b"])


def test_a_range_reader_of_a_deleted_channel_stays_connected(harness: BrokerHarness) -> None:
    """After its channel is deleted, a range reader stays connected, but its COMMIT fails."""
    reader, attached = attach(harness)
    harness.broker.delete_channel("t", "c", harness.clock.now())
    reader.say(commands.commit("t", "c", attached["epoch"], attached["end"]))

    assert reader.answers() == [b"E_COMMIT_FAILED COMMIT failed channel t:c not found"]
    reader.close()
