"""Range reading: the log by index ranges, the channel as a bookmark."""

from __future__ import annotations

import json
import struct

from sparq.protocol import commands
from tests.broker.house import House
from tests.broker.ranges import ask, read


def test_attach_read_commit(house: House) -> None:
    """A reader attaches, reads what is there, commits, and the stats show its lag as depth."""
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
    """One batch at least, and where to go on; the parts are the whole."""
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
    """Decision 30: stream mode or range mode, never both; the reader's end frees the channel."""
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
    """An older reader's commit fails, and says why; epochs rise over a restart."""
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
    """Unknown channels, indexes outside of the log, and epochs of nobody are refused."""
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
    """An older checkpoint moves the cursor back while the log still holds the messages."""
    house.publish("t", b"1", b"2", b"3")
    reader = house.connect()
    attached = ask(reader, commands.attach("t", "c"))
    epoch, first, end = attached["epoch"], int(attached["first"]), int(attached["end"])
    reader.say(commands.commit("t", "c", epoch, end) + commands.commit("t", "c", epoch, first + 1))

    assert reader.answers() == [b"OK", b"OK"]
    assert house.channel("t", "c").depth == 2


def test_ends(house: House) -> None:
    """The ends of a log; the first index at or after a time; so many messages further on."""
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
    """How far so many bytes reach: whole stretches of the log, one at least; and their size."""
    for n in range(4):
        house.publish("t", bytes([n]) * 70_000, b"-")
    client = house.connect()
    house.consumer("t", "c")
    ends = ask(client, commands.ends("t"))
    first, end = int(ends["first"]), int(ends["end"])
    _, _, bodies = read(client, ends["log"], first, end, 1)
    assert len(bodies) == 2  # each publish is a stretch of its own

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
    """Only then the channel's place is no one's choice."""
    house.publish("t", b"1")
    reader = house.connect()

    assert [True, False] == [ask(reader, commands.attach("t", "new"))["created"] for _ in range(2)]


def test_ends_at_a_time_of_cold_messages() -> None:
    """The answer may need the disk, and keeps its place among the replies."""
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
    """Another log's range, and ranges that the log does not hold, are refused by name."""
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
    """A paused topic shows a reader nothing new: P bounds what can be read."""
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
    """A range reader reads deferred publishes where they lie, due or not; then they are done."""
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
    """What became due while a reader held the channel is not lost for a later subscriber."""
    reader = house.connect()
    ask(reader, commands.attach("t", "c"))
    house.publish("t", b"1")
    house.publish("t", b"2", defer_ms=1000)
    house.pass_time(2.0)
    reader.close()

    consumer = house.consumer("t", "c", rdy=10)

    assert sorted(consumer.bodies()) == [b"1", b"2"]


def test_attach_takes_over_what_a_stream_left(house: House) -> None:
    """What subscribers left unfinished is read again: nothing is lost by changing the mode."""
    consumer = house.consumer("t", "c", rdy=4)
    house.publish("t", *[b"%d" % n for n in range(6)])
    messages = consumer.messages()
    consumer.finish([messages[0], messages[2]])
    consumer.close()

    attached = ask(house.connect(), commands.attach("t", "c"))

    assert int(attached["committed"]) == messages[1].index


def test_a_held_channel_keeps_its_segments() -> None:
    """Nothing is dropped before it is committed, also while no reader is connected."""
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
    """Nothing of an ephemeral topic can be read by ranges."""
    client = house.connect()
    client.say(commands.pub("t#ephemeral", b"x"))
    client.say(commands.attach("t#ephemeral", "c") + commands.ends("t#ephemeral"))

    assert client.answers() == [
        b"OK",
        b"E_ATTACH_FAILED ATTACH failed topic t#ephemeral has no log",
        b"E_RANGE_FAILED ENDS failed topic t#ephemeral has no log",
    ]


def test_reads_wait_for_their_answers_to_be_taken(house: House) -> None:
    """A client that asks for much and takes nothing costs one answer's memory; in the end all
    answers come, in order."""
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
    """It is refused in its place."""
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
    """A READ across a damaged batch says how many messages it lacks."""
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
    """The hold is gone and the channel streams again: an old bookmark must not move it."""
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
    """The reader's connection stays; its bookmark is gone."""
    reader = house.connect()
    attached = ask(reader, commands.attach("t", "c"))
    house.broker.delete_channel("t", "c", house.clock.now())
    reader.say(commands.commit("t", "c", attached["epoch"], int(attached["end"])))

    assert reader.answers() == [b"E_COMMIT_FAILED COMMIT failed channel t:c not found"]
    reader.close()
