"""Range reading: the log is read by index ranges, and the channel stores the position."""

from __future__ import annotations

import json
import struct

from sparq.protocol import commands
from tests.broker.house import House
from tests.broker.ranges import ask, read


def test_attach_read_commit(house: House) -> None:
    """A range reader attaches, reads and commits.

    The depth is the number of uncommitted messages, also after a crash.
    """
    house.publish("t", b"1", b"2")
    house.publish("t", b"3")
    reader = house.connect()
    attached = ask(reader, commands.attach("t", "spark"))
    first, end = int(attached["first"]), int(attached["end"])
    assert (int(attached["committed"]) <= first, end - first) == (True, 3)
    assert (attached["committed_ordinal"], attached["end_ordinal"]) == (0, 3)
    assert house.channel("t", "spark").depth == 3

    assert read(reader, attached["log"], first, end, 1 << 20) == (end, 0, [b"1", b"2", b"3"])
    reader.say(commands.commit("t", "spark", attached["epoch"], first + 2))

    assert reader.answers() == [b"OK"]
    assert house.channel("t", "spark").depth == 1
    house.crash()
    assert house.channel("t", "spark").depth == 1


def test_a_read_stops_at_its_size(house: House) -> None:
    """A READ returns at least one batch, and the index to continue from.

    All parts are the whole range.
    """
    for n in range(10):
        house.publish("t", b"%d" % n * 400)
    reader = house.connect()
    attached = ask(reader, commands.attach("t", "spark"))
    at, end = int(attached["first"]), int(attached["end"])
    found: list[bytes] = []
    steps = 0
    while at < end:
        at, _, bodies = read(reader, attached["log"], at, end, 1000)
        found += bodies
        steps += 1

    assert found == [b"%d" % n * 400 for n in range(10)]
    assert 2 <= steps <= 10


def test_a_held_channel_refuses_sub_and_the_reverse(house: House) -> None:
    """Decision 30: a channel has subscribers or a range reader, never both.

    The channel is free again when the reader disconnects.
    """
    reader = house.connect()
    ask(reader, commands.attach("t", "c"))
    refused = house.consumer("t", "c")
    assert refused.answers() == [b"E_SUB_FAILED SUB failed channel t:c is held by a range reader"]
    assert refused.session.closing
    refused.close()

    reader.close()
    consumer = house.consumer("t", "c")
    assert consumer.answers() == [b"OK"]
    late = house.connect()
    late.say(commands.attach("t", "c"))

    assert late.answers() == [b"E_ATTACH_FAILED ATTACH failed channel t:c has 1 consumers"]
    assert not late.session.closing


def test_the_newest_attach_wins(house: House) -> None:
    """The newest ATTACH holds the channel: an older reader's COMMIT gets E_COMMIT_FAILED.

    Epochs increase across a restart.
    """
    house.publish("t", b"x")
    old, new = house.connect(), house.connect()
    first = ask(old, commands.attach("t", "c"))
    second = ask(new, commands.attach("t", "c"))
    assert second["epoch"] > first["epoch"]

    old.say(commands.commit("t", "c", first["epoch"], int(first["end"])))
    new.say(commands.commit("t", "c", second["epoch"], int(second["end"])))

    superseded = f"COMMIT failed epoch {first['epoch']} was superseded by {second['epoch']}"
    assert old.answers() == [f"E_COMMIT_FAILED {superseded}".encode()]
    assert new.answers() == [b"OK"]
    old.close()
    assert house.channel("t", "c").range_reader == "10.0.0.1:5555"
    house.advance(0.001)
    house.crash()
    third = ask(house.connect(), commands.attach("t", "c"))
    assert third["epoch"] > second["epoch"]
    assert third["committed"] == second["end"]


def test_commit_refusals(house: House) -> None:
    """COMMIT is refused for unknown channels, indexes outside the log, and unknown epochs."""
    house.publish("t", b"x")
    reader = house.connect()
    attached = ask(reader, commands.attach("t", "c"))
    epoch, first, end = attached["epoch"], int(attached["first"]), int(attached["end"])
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


def test_a_commit_may_go_back(house: House) -> None:
    """A COMMIT can move the cursor back while the log still has the messages."""
    house.publish("t", b"1", b"2", b"3")
    reader = house.connect()
    attached = ask(reader, commands.attach("t", "c"))
    epoch, first, end = attached["epoch"], int(attached["first"]), int(attached["end"])
    reader.say(commands.commit("t", "c", epoch, end) + commands.commit("t", "c", epoch, first + 1))

    assert reader.answers() == [b"OK", b"OK"]
    assert house.channel("t", "c").depth == 2


def test_ends(house: House) -> None:
    """ENDS returns the log's first and end index.

    Options add the first index at or after a time, or the index N messages further on.
    """
    times = []
    for n in range(5):
        times.append(house.clock.wall_ns)
        house.publish("t", b"%d" % n, b"-")
        house.advance(10.0)
    client = house.connect()
    house.consumer("t", "c")
    ends = ask(client, commands.ends("t"))
    first = int(ends["first"])
    assert (int(ends["end"]), ends["first_ordinal"], ends["end_ordinal"]) == (first + 10, 0, 10)

    at = ask(client, commands.ends_at_time("t", times[2] + 1))
    assert (int(at["at"]), at["at_ordinal"]) == (first + 6, 6)
    late = ask(client, commands.ends_at_time("t", times[4] + 1))
    assert late["at"] == ends["end"]
    after = ask(client, commands.ends_after("t", first + 1, 4))
    assert (int(after["at"]), after["at_ordinal"], after["from_ordinal"]) == (first + 5, 5, 1)
    beyond = ask(client, commands.ends_after("t", first, 999))
    assert beyond["at"] == ends["end"]


def test_ends_within_a_size(house: House) -> None:
    """ENDS with a size returns how far that many bytes reach, in whole extents, at least one.

    It also returns their size.
    """
    for n in range(4):
        house.publish("t", bytes([n]) * 70_000, b"-")
    client = house.connect()
    house.consumer("t", "c")
    ends = ask(client, commands.ends("t"))
    first, end = int(ends["first"]), int(ends["end"])
    _, _, bodies = read(client, ends["log"], first, end, 1)
    assert len(bodies) == 2  # each publish is an extent of its own

    found = [
        ask(client, commands.ends_within("t", first + begin, size))
        for begin, size in ((0, 0), (0, 140_000), (0, 150_000), (1, 999_999), (8, 5))
    ]
    assert [2, 2, 4, 8, 8] == [int(answer["at"]) - first for answer in found]
    assert [2, 2, 4, 8, 8] == [answer["at_ordinal"] for answer in found]
    assert [0, 0, 0, 1, 8] == [answer["from_ordinal"] for answer in found]
    one = found[0]["size"]
    assert 70_001 < one < 70_300
    assert [one, one, 2 * one, 4 * one, 0] == [answer["size"] for answer in found]


def test_attach_says_whether_it_has_created_the_channel(house: House) -> None:
    """ATTACH reports whether it created the channel.

    A new channel's position is a default, not a choice of any client.
    """
    house.publish("t", b"1")
    reader = house.connect()

    assert [True, False] == [ask(reader, commands.attach("t", "new"))["created"] for _ in range(2)]


def test_ends_at_a_time_of_cold_messages() -> None:
    """An ENDS that needs the disk keeps its position among the replies."""
    house = House(cache_bytes=1)
    for n in range(50):
        house.publish("t", b"%d" % n * 100)
        house.advance(1.0)
    house.consumer("t", "c")
    house.crash()
    client = house.connect()
    begin = ask(client, commands.ends("t"))

    client.say(
        commands.ends_at_time("t", house.clock.wall_ns - 20_000_000_000) + commands.ends("nope")
    )

    found, refused = client.answers()
    assert json.loads(found)["at_ordinal"] == 30
    assert refused == b"E_RANGE_FAILED ENDS failed topic nope not found"
    assert begin["end_ordinal"] == 50


def test_read_refusals(house: House) -> None:
    """READ is refused for another log's id and for ranges that the log does not hold."""
    house.publish("t", b"x")
    client = house.connect()
    house.consumer("t", "c")
    ends = ask(client, commands.ends("t"))
    log, first, end = ends["log"], int(ends["first"]), int(ends["end"])
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


def test_readers_see_nothing_behind_the_mark(house: House) -> None:
    """Range readers see messages before P only: nothing new while the topic is paused."""
    reader = house.connect()
    before = ask(reader, commands.attach("t", "c"))
    house.broker.pause_topic("t", True, house.clock.now())
    house.publish("t", b"x")
    assert ask(reader, commands.ends("t"))["end"] == before["end"]

    house.broker.pause_topic("t", False, house.clock.now())
    house.turn()

    ends = ask(reader, commands.ends("t"))
    assert int(ends["end"]) - int(ends["first"]) == 1


def test_a_deferred_publish_stands_at_its_place(house: House) -> None:
    """A range reader reads deferred publishes at their position in the log, due or not.

    A later subscriber does not get them again after the COMMIT.
    """
    reader = house.connect()
    ask(reader, commands.attach("t", "c"))
    house.publish("t", b"1")
    house.publish("t", b"2", defer_ms=60_000)
    attached = ask(reader, commands.attach("t", "c"))
    first, end = int(attached["first"]), int(attached["end"])
    assert read(reader, attached["log"], first, end, 1 << 20)[2] == [b"1", b"2"]
    reader.say(commands.commit("t", "c", attached["epoch"], end))
    reader.close()
    consumer = house.consumer("t", "c", rdy=10)
    house.pass_time(61.0)

    assert consumer.messages() == []


def test_due_while_held_and_not_committed(house: House) -> None:
    """A message that became due under a range reader reaches a later subscriber."""
    reader = house.connect()
    ask(reader, commands.attach("t", "c"))
    house.publish("t", b"1")
    house.publish("t", b"2", defer_ms=1000)
    house.pass_time(2.0)
    reader.close()

    consumer = house.consumer("t", "c", rdy=10)

    assert sorted(consumer.bodies()) == [b"1", b"2"]


def test_attach_takes_over_what_a_stream_left(house: House) -> None:
    """After a change to range mode, the messages that subscribers left unfinished are read."""
    consumer = house.consumer("t", "c", rdy=4)
    house.publish("t", *[b"%d" % n for n in range(6)])
    messages = consumer.messages()
    consumer.finish([messages[0], messages[2]])
    consumer.close()

    attached = ask(house.connect(), commands.attach("t", "c"))

    assert int(attached["committed"]) == messages[1].index


def test_a_held_channel_keeps_its_segments() -> None:
    """Segments are kept until they are committed, even while no reader is connected."""
    house = House(max_bytes_per_file=2000)
    reader = house.connect()
    attached = ask(reader, commands.attach("t", "c"))
    for n in range(30):
        house.publish("t", b"%d" % n * 300)
    log = house.broker.topics["t"].stream.log
    files = len(log.segments())
    reader.close()
    house.pass_time(5.0)
    assert len(log.segments()) == files > 3

    reader = house.connect()
    attached = ask(reader, commands.attach("t", "c"))
    end = int(attached["end"])
    for index in (end - 1, end):
        reader.say(commands.commit("t", "c", attached["epoch"], index))
    house.pass_time(5.0)

    assert len(log.segments()) == 1


def test_ephemeral_topics_have_no_log(house: House) -> None:
    """ATTACH and ENDS are refused for an ephemeral topic."""
    client = house.connect()
    client.say(commands.pub("t#ephemeral", b"x"))
    client.say(commands.attach("t#ephemeral", "c") + commands.ends("t#ephemeral"))

    assert client.answers() == [
        b"OK",
        b"E_ATTACH_FAILED ATTACH failed topic t#ephemeral has no log",
        b"E_RANGE_FAILED ENDS failed topic t#ephemeral has no log",
    ]


def test_reads_wait_for_their_answers_to_be_taken(house: House) -> None:
    """A client has one READ answer in memory; further READs wait until it has taken it.

    All answers arrive in order.
    """
    for n in range(4):
        house.publish("t", b"%d" % n * 1000)
    client = house.connect()
    attached = ask(client, commands.attach("t", "c"))
    first, end = int(attached["first"]), int(attached["end"])
    for at in range(first, end):
        client.say(commands.read("t", attached["log"], at, end, 1), turn=False)
    tasks = house.broker.end_turn(house.clock.now())
    assert len(tasks) == 1
    for task in tasks:
        task.work.run()
        house.broker.finish(task, house.clock.now())
    client.say(commands.read("t", attached["log"], first, end, 1), turn=False)
    assert house.broker.end_turn(house.clock.now()) == []
    client.session.paused_writing = True
    client.collect()
    assert house.broker.end_turn(house.clock.now()) == []

    client.session.paused_writing = False
    house.broker.writable(client.session)
    house.turn()

    starts = [struct.unpack_from(">q", data)[0] for kind, data in client.heard()]
    assert starts == [first + 1, first + 2, first + 3, first + 4, first + 1]


def test_a_range_that_went_while_its_read_waited(house: House) -> None:
    """A waiting READ whose range is deleted meanwhile is refused, in its place in the replies."""
    house = House(max_bytes_per_file=2000)
    reader = house.connect()
    attached = ask(reader, commands.attach("t", "c"))
    for n in range(10):
        house.publish("t", b"%d" % n * 900)
    ends = ask(reader, commands.ends("t"))
    first, end = int(ends["first"]), int(ends["end"])
    reader.session.paused_writing = True
    reader.say(commands.read("t", ends["log"], first, end, 100))
    for index in (end - 1, end):
        house.connect().say(commands.commit("t", "c", attached["epoch"], index))
    house.pass_time(3.0)
    reader.session.paused_writing = False
    house.broker.writable(reader.session)
    house.turn()

    ((_, refused),) = reader.heard()
    assert refused.startswith(b"E_RANGE_FAILED READ failed index %d is before" % first)


def test_damage_in_a_range_is_counted() -> None:
    """A READ across a damaged batch reports the number of missing messages."""
    house = House(cache_bytes=1)
    for n in range(3):
        house.publish("t", b"%d-a" % n, b"%d-b" % n)
    house.consumer("t", "c")
    (path,) = [path for path in house.disk.paths() if path.endswith(".log")]
    data = house.disk.data(path)
    data[data.index(b"1-a")] ^= 1
    client = house.connect()
    ends = ask(client, commands.ends("t"))
    first, end = int(ends["first"]), int(ends["end"])

    after, lost, bodies = read(client, ends["log"], first, end, 1 << 20)

    assert (after, lost, bodies) == (end, 2, [b"0-a", b"0-b", b"2-a", b"2-b"])


def test_a_commit_behind_a_new_subscriber(house: House) -> None:
    """After a new SUB, a COMMIT of the former range reader is refused.

    Otherwise its old position would move the channel.
    """
    house.publish("t", b"x")
    reader, other = house.connect(), house.connect()
    attached = ask(reader, commands.attach("t", "c"))
    reader.close()
    other.say(commands.commit("t", "c", attached["epoch"], int(attached["end"])))
    assert other.answers() == [b"OK"]

    house.consumer("t", "c")
    other.say(commands.commit("t", "c", attached["epoch"], int(attached["end"])))

    epoch = attached["epoch"]
    assert other.answers() == [b"E_COMMIT_FAILED COMMIT failed epoch %d is not attached" % epoch]


def test_deleting_a_held_channel(house: House) -> None:
    """After its channel is deleted, a range reader stays connected, but its COMMIT fails."""
    reader = house.connect()
    attached = ask(reader, commands.attach("t", "c"))
    house.broker.delete_channel("t", "c", house.clock.now())
    reader.say(commands.commit("t", "c", attached["epoch"], int(attached["end"])))

    assert reader.answers() == [b"E_COMMIT_FAILED COMMIT failed channel t:c not found"]
    reader.close()
